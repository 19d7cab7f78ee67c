// The lines of training charts, from the metrics of the API: the points of all attempts of a run on one axis. A restart
// continues from a checkpoint, so steps are repeated: the repeated ones are lines of their own.
"use strict";
const runData = (() => {
  const number = (value) => (typeof value === "number" ? value : null);  // NaN is a string in JSON, and becomes a gap
  const seconds = (point) => Date.parse(point.at) / 1000;
  const all = (run) => run.attempts.flatMap((attempt) => attempt.points);
  const began = (run) => Math.min(...all(run).map(seconds));

  // Where the points of a run are on the axis. Null: a report without a step has no place on the axis of steps
  function placing(run, axis) {
    if (axis === "step") return (point) => number(point.step);
    const zero = axis === "elapsed" ? began(run) : 0;
    return (point) => seconds(point) - zero;
  }

  // The moving average starts with the first value. A gap stays a gap and does not restart the average
  function smooth(rows, weight) {
    let mean = null;
    return rows.map(([x, value]) => {
      if (value === null) return [x, null];
      mean = mean === null ? value : weight * mean + (1 - weight) * value;
      return [x, mean];
    });
  }

  // Points in the order of the axis, each place once
  const ordered = (rows) => [...new Map(rows).entries()].sort(([one], [other]) => one - other);

  // The points of one attempt: those that count, and those that a later attempt repeated
  function segments(attempt, metric, place, weight) {
    const known = attempt.points.filter((point) => place(point) !== null);
    const rows = smooth(ordered(known.map((point) => [place(point), number(point[metric])])), weight);
    const from = attempt.repeated_from_step;
    const repeated = new Set(known.filter((point) => from !== null && point.step >= from).map(place));
    const kept = rows.filter(([x]) => !repeated.has(x));
    const again = rows.filter(([x]) => repeated.has(x));
    // The line of repeated steps begins where the other one ends
    return { kept, again: again.length && kept.length ? [kept.at(-1), ...again] : again };
  }

  // One line of several pieces, with a gap between them
  function withGaps(pieces) {
    return pieces.filter((piece) => piece.length).reduce((line, piece) => {
      const last = line.at(-1);
      return last ? [...line, [(last[0] + piece[0][0]) / 2, null], ...piece] : piece;
    }, []);
  }

  // As few lines as possible in which no two pieces overlap
  function lanes(pieces) {
    const lines = [];
    for (const piece of pieces.filter((one) => one.length)) {
      const free = lines.find((line) => line.at(-1).at(-1)[0] < piece[0][0]);
      if (free) free.push(piece);
      else lines.push([piece]);
    }
    return lines.map(withGaps);
  }

  const table = (rows) => [rows.map(([x]) => x), rows.map(([, y]) => y)];

  // The lines of one metric: the first is that of the steps that count, the others are repeated steps
  function lines(run, metric, axis, weight = 0) {
    const place = placing(run, axis);
    const parts = run.attempts.map((attempt) => segments(attempt, metric, place, weight));
    const kept = parts.map((part) => part.kept);
    const line = axis === "step" ? ordered(kept.flat()) : withGaps(kept);
    return [line, ...lanes(parts.map((part) => part.again))].map(table);
  }

  // Where an event is on the axis of a run. On the axis of steps: at the first step after a start, else the last before
  function eventPlace(run, axis, event) {
    const at = Date.parse(event.at) / 1000;
    if (axis !== "step") return axis === "elapsed" ? at - began(run) : at;
    if (typeof event.step === "number") return event.step;
    const points = all(run).filter((point) => typeof point.step === "number");
    const starts = event.kind === "attempt";
    const near = starts ? points.find((point) => seconds(point) >= at) : points.findLast((point) => seconds(point) <= at);
    return near ? near.step : null;
  }

  // First, lowest, highest and newest value of a metric; null if there is none
  function summary(run, metric) {
    const values = all(run).map((point) => number(point[metric])).filter((value) => value !== null);
    if (!values.length) return null;
    const [low, high] = values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
    return [values[0], low, high, values.at(-1)];
  }

  const reports = (run, metric) => all(run).some((point) => number(point[metric]) !== null);
  const hasSteps = (run) => all(run).some((point) => typeof point.step === "number");

  return { lines, eventPlace, summary, reports, hasSteps };
})();
