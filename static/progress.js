// Draws the training metrics of a job, and of up to four runs to compare: one chart per metric, with a common axis,
// cursor and zoom. The data is the API's; the runs and the events are read from the page around the charts.
"use strict";
function plotsOf(box) {
  const HEIGHT = 290;
  const PAD = { at: 30, elapsed: 30, step: 1 };  // on both sides of a single point
  const TICK_SPACE = 40;
  const NEAR_PX = 8;  // from the pointer to a value or a marker
  const EVERY_MS = 15000;
  const MOST_LINES = 12;  // more checkpoints are short ticks on the axis
  const METRICS = {
    loss: "loss",
    tokens_per_s: "tokens per second",
    mfu: "MFU",
    step_time_s: "seconds per step",
    grad_norm: "gradient norm",
    learning_rate: "learning rate",
  };
  const AXES = { at: "UTC", elapsed: "elapsed", step: "step" };
  const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [14, 6]];
  const SYMBOLS = { attempt: "▶", failure: "✗", incident: "◆", checkpoint: "" };
  const TONES = { attempt: "running", failure: "bad", incident: "warn", checkpoint: "good" };
  const options = { over: "step", distribution: "linear", smoothing: "0" };  // smoothing: weight of the earlier values
  const grid = box.querySelector(".metric-charts");
  const reset = box.querySelector("[data-reset]");
  let runs = [];
  let checkpoints = [];
  let marks = [];
  let charts = [];
  let zoom = null;
  let tones = {};  // colors of the marks in the current theme
  let shape = "";  // of the charts that are drawn; equal ones only get new values

  const over = () => (runs.every(runData.hasSteps) ? options.over : options.over === "step" ? "at" : options.over);

  // --- one chart

  // A single point gets a range around it: uPlot would draw an axis of years
  const around = (low, high) => (low === null || low < high ? [low, high] : [low - PAD[over()], high + PAD[over()]]);

  const xText = (x) => (over() === "at" ? drawing.exact(x) : over() === "elapsed" ? drawing.span(x) : x?.toLocaleString("en") ?? "");

  function axes(base, logarithmic) {
    const [x, y] = base.axes;
    const values = logarithmic ? { values: (_chart, ticks) => ticks.map((tick) => (tick === null ? "" : drawing.short(tick))) } : {};
    const spans = over() === "elapsed" ? { incrs: drawing.SPANS, values: (_chart, ticks) => ticks.map(drawing.span) } : {};
    return [{ ...x, ...spans }, { ...y, ...values, space: TICK_SPACE }];
  }

  // The value at the pointer, or that of the repeated steps there. Runs report at different places, so near is enough
  function nearest(chart, series, at, x) {
    const values = chart.data[series];
    const known = (index) => typeof values[index] === "number";
    const limit = chart.posToVal(NEAR_PX, "x") - chart.posToVal(0, "x");
    const close = (index) => Math.abs(chart.data[0][index] - x) <= limit;
    for (let step = 0; step < values.length; step += 1) {
      const [left, right] = [at - step, at + step];
      if (!(left >= 0 && close(left)) && !(right < values.length && close(right)) && step) return null;
      if (left >= 0 && known(left)) return left;
      if (right < values.length && known(right)) return right;
    }
    return null;
  }

  // The value at the pointer in the lines of repeated steps, which follow the line of their run
  function repeatedValue(chart, at) {
    for (let lane = at + 1; chart.series[lane]?.class === "repeated"; lane += 1) {
      const value = chart.data[lane][chart.cursor.idxs?.[lane]];
      if (typeof value === "number") return value;
    }
    return null;
  }

  function lineSeries(run, number, line) {
    const points = { show: line[0].length < 40 };
    const look = { stroke: drawing.color(box, `run-${number + 1}`), width: 1.5, dash: DASHES[number], points };
    return { ...look, label: run.name, spanGaps: false, value: (chart, value, at) => drawing.short(value ?? repeatedValue(chart, at)) };
  }

  const repeatedSeries = (number) => ({
    stroke: drawing.color(box, `run-${number + 1}`), width: 1, dash: [2, 4], spanGaps: false, points: { show: false }, class: "repeated",
  });

  const tables = (metric) => runs.map((run) => runData.lines(run, metric, over(), Number(options.smoothing)));

  function chartOptions(metric, lines, place) {
    const base = drawing.plot(box, { title: METRICS[metric], height: HEIGHT, time: over() === "at", key: "progress" });
    const logarithmic = options.distribution === "log" && lines.flat().every(([, values]) => values.every((value) => value === null || value > 0));
    const series = lines.flatMap((own, number) => own.map((line, lane) => (lane ? repeatedSeries(number) : lineSeries(runs[number], number, line))));
    return {
      ...base,
      width: place.clientWidth || 320,
      axes: axes(base, logarithmic),
      cursor: { ...base.cursor, drag: { x: true, y: false, setScale: false }, dataIdx: nearest, bind: { dblclick: () => showAll } },
      scales: {
        x: { ...base.scales.x, range: (_chart, low, high) => zoom ?? around(low, high) },
        y: logarithmic ? { distr: 3, range: (_chart, low, high) => uPlot.rangeLog(low ?? 1, high ?? 10, 10, false) } : {},
      },
      hooks: { ready: [showValues], setCursor: [showValues, showMark], setSelect: [zoomTo], draw: [drawMarks] },
      series: [{ label: AXES[over()], value: (_, x) => xText(x) }, ...series],
    };
  }

  // The values are shown only while the pointer is over a chart
  const showValues = (chart) => chart.root.classList.toggle("idle", typeof chart.cursor.idx !== "number");

  // --- zoom, common to all charts

  function zoomTo(chart) {
    const { left, width } = chart.select;
    if (width < 3) return;
    setZoom([chart.posToVal(left, "x"), chart.posToVal(left + width, "x")]);
    chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  function setZoom(range) {
    zoom = range;
    reset.disabled = zoom === null;
    // The whole range is computed from the data again
    for (const chart of charts) chart.setData(chart.data, true);
  }

  const showAll = () => setZoom(null);

  // --- markers

  const checkpointText = ({ step, verdict }) => `Checkpoint of step ${step.toLocaleString("en")}${verdict ? `, ${verdict}` : ""}.`;

  function readMarks() {
    const rows = [...document.querySelectorAll("#chart-events [data-kind]")].map((row) => ({ ...row.dataset }));
    const saved = checkpoints.map((one) => ({ kind: "checkpoint", at: one.saved_at, step: one.step, text: checkpointText(one) }));
    const placed = [...saved, ...rows].map((mark) => ({ ...mark, x: runData.eventPlace(runs[0], over(), mark) }));
    return placed.filter((mark) => mark.x !== null);
  }

  // Checkpoints are dashed lines, or ticks on the axis if there are many; the other marks have a symbol at the top
  function drawMarks(chart) {
    const { ctx, bbox } = chart;
    const ticks = checkpoints.length > MOST_LINES;
    ctx.save();
    ctx.font = `${11 * devicePixelRatio}px "DejaVu Sans", "Segoe UI Symbol", "Apple Symbols", sans-serif`;
    ctx.textAlign = "center";
    for (const mark of marks) {
      const x = Math.round(chart.valToPos(mark.x, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      const isTick = mark.kind === "checkpoint" && ticks;
      ctx.strokeStyle = ctx.fillStyle = tones[mark.kind];
      ctx.lineWidth = devicePixelRatio * (mark.kind === "checkpoint" ? 0.75 : 1);
      ctx.setLineDash(mark.kind === "checkpoint" ? [2, 3] : mark.kind === "attempt" ? [] : [5, 3]);
      ctx.beginPath();
      ctx.moveTo(x, isTick ? bbox.top + bbox.height - 6 * devicePixelRatio : bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.fillText(SYMBOLS[mark.kind], x, bbox.top - 2 * devicePixelRatio);
    }
    ctx.restore();
  }

  // The marks next to the pointer, in the chart under it
  function showMark(chart) {
    const tip = chart.over.querySelector(".tip");
    const { left } = chart.cursor;
    const near = chart.over.matches(":hover") ? marks.filter((mark) => Math.abs(chart.valToPos(mark.x, "x") - left) <= NEAR_PX) : [];
    tip.hidden = !near.length;
    tip.textContent = near.slice(-4).map((mark) => mark.text).join("\n");
    tip.classList.toggle("left", left > chart.over.clientWidth / 2);
  }

  function addTip(chart) {
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    chart.over.append(tip);
  }

  // --- all charts

  function placeOf(metric) {
    const found = grid.querySelector(`[data-metric="${metric}"]`);
    if (found) return found;
    const place = document.createElement("div");
    place.className = "metric-chart";
    place.dataset.metric = metric;
    grid.append(place);
    return place;
  }

  function drawChart(metric, lines) {
    const place = placeOf(metric);
    const chart = new uPlot(chartOptions(metric, lines, place), uPlot.join(lines.flat()), (made, start) => {
      addTip(made);
      place.replaceChildren(made.root);
      start();
    });
    chart.root.setAttribute("role", "img");
    return chart;
  }

  function describe(chart, metric) {
    const found = runs.map((run) => [run.name, runData.summary(run, metric)]).filter(([, values]) => values);
    const words = found.map(([name, [first, , , newest]]) => `${name}: from ${drawing.short(first)} to ${drawing.short(newest)}.`);
    chart.root.setAttribute("aria-label", [`${METRICS[metric]} by ${AXES[over()]}.`, ...words].join(" "));
  }

  function draw(anew = true) {
    const shown = Object.keys(METRICS).filter((metric) => runs.some((run) => runData.reports(run, metric)));
    const lines = shown.map(tables);
    const wanted = JSON.stringify([shown, lines.map((of) => of.map((own) => own.length)), options, over(), runs.map((run) => run.job)]);
    marks = readMarks();
    tones = Object.fromEntries(Object.entries(TONES).map(([kind, name]) => [kind, drawing.color(box, name)]));
    if (anew || wanted !== shape) {
      charts.forEach((chart) => chart.destroy());
      charts = shown.map((metric, at) => drawChart(metric, lines[at]));
    } else {
      charts.forEach((chart, at) => chart.setData(uPlot.join(lines[at].flat())));
    }
    shape = wanted;
    charts.forEach((chart, at) => describe(chart, shown[at]));
    for (const place of grid.children) place.hidden = !shown.includes(place.dataset.metric);
    fillTable(shown);
    showOptions();
    fit();
    box.dataset.drawn = String(charts.length);
    box.dataset.runs = String(runs.length);
  }

  function fit() {
    for (const chart of charts) chart.setSize({ width: chart.root.parentElement?.clientWidth || 320, height: HEIGHT });
  }

  // The same values as text, for those who cannot see the charts
  function fillTable(shown) {
    const rows = shown.flatMap((metric) => runs.map((run) => [run, METRICS[metric], runData.summary(run, metric)]));
    box.querySelector(".chart-values tbody").replaceChildren(...rows.filter(([, , found]) => found).map(([run, title, found]) => {
      const row = document.createElement("tr");
      [`${run.name} ${run.job}`, title, ...found.map(drawing.short)].forEach((text, at) => {
        const cell = row.insertCell();
        cell.textContent = text;
        cell.className = at > 1 ? "num" : "";
      });
      return row;
    }));
  }

  function showOptions() {
    for (const button of box.querySelectorAll(".switch button")) {
      const [[name, value]] = Object.entries(button.dataset);
      button.setAttribute("aria-pressed", String((name === "over" ? over() : options[name]) === value));
      if (value === "step") button.disabled = !runs.every(runData.hasSteps);
    }
  }

  // --- data

  async function read(line) {
    const run = await drawing.read(line.dataset.url);
    return { ...run, name: line.dataset.name };
  }

  async function ask() {
    try {
      const lines = [...document.querySelectorAll(".compared-runs [data-url]")];
      const [found, ...answers] = await Promise.all([drawing.read(box.dataset.marks), ...lines.map(read)]);
      checkpoints = found.results ?? [];
      runs = answers;
      draw(false);
    } catch { /* the text above shows how old the values are; the next request may succeed */ }
  }

  box.addEventListener("click", (event) => {
    const button = event.target.closest(".switch button");
    if (!button) return;
    Object.assign(options, button.dataset);
    if (button.dataset.over) zoom = null;  // its limits are places on the other axis
    reset.disabled = zoom === null;
    draw();
  });
  reset.addEventListener("click", showAll);
  drawing.keep(box, { draw, fit, ask, everyMs: box.dataset.live ? EVERY_MS : 0 });
  ask();
}

(() => {
  // The plots of a job that starts to report arrive with the fragment
  const begin = () => {
    const box = document.getElementById("plots");
    if (!box || box.dataset.begun) return;
    box.dataset.begun = "1";
    plotsOf(box);
  };
  document.addEventListener("htmx:after:swap", begin);
  begin();
})();
