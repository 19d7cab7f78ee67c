// Draws the progress of a job: loss, step time and other reported values, one plot below the other with a common axis.
// The data is the API's; the sections around the plots show the newest values as text.
"use strict";
function plotsOf(box) {
  const HEIGHT = 295;
  const PAD = { at: 30, step: 1 };  // on both sides of a single point
  const TICK_SPACE = 40;
  const EVERY_MS = 15000;
  const DRAWN = [["loss", "loss"], ["step_time_s", "seconds per step"], ["grad_norm", "gradient norm"], ["learning_rate", "learning rate"]];
  let over = "at";
  let distribution = "linear";
  let smoothing = 0;  // weight of the earlier values in the moving average
  let points = [];
  let marks = [];
  let charts = [];
  const width = () => box.querySelector(".uplot")?.clientWidth || Math.min(box.clientWidth, 640);
  const number = (value) => (typeof value === "number" ? value : null);  // NaN is a string in JSON, and becomes a gap
  const place = (point) => (over === "at" ? Date.parse(point.at) / 1000 : point.step);

  // Checkpoints are vertical lines, and ticks on the axis if there are many: a restart continues from one of them
  const MOST_LINES = 12;
  const saved = (tone) => ({
    hooks: {
      draw: [(chart) => {
        const { ctx, bbox } = chart;
        ctx.save();
        ctx.strokeStyle = tone;
        ctx.setLineDash([2, 3]);
        for (const mark of marks) {
          const at = over === "at" ? Date.parse(mark.saved_at) / 1000 : mark.step;
          const x = Math.round(chart.valToPos(at, "x", true));
          if (x < bbox.left || x > bbox.left + bbox.width) continue;
          ctx.beginPath();
          ctx.moveTo(x, marks.length > MOST_LINES ? bbox.top + bbox.height - 6 * devicePixelRatio : bbox.top);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
        }
        ctx.restore();
      }],
    },
  });

  // The moving average starts with the first value. A gap stays a gap and does not restart the average
  function smooth(values) {
    let mean = null;
    return values.map((value) => {
      if (value === null) return null;
      mean = mean === null ? value : smoothing * mean + (1 - smoothing) * value;
      return mean;
    });
  }

  // A single point gets a range around it: uPlot would draw an axis of years
  const around = (_chart, low, high) => (low === null || low < high ? [low, high] : [low - PAD[over], high + PAD[over]]);

  // The values are shown only while the pointer is over a chart
  const showValues = (chart) => chart.root.classList.toggle("idle", typeof chart.cursor.idx !== "number");

  function axes(base, logarithmic) {
    const [x, y] = base.axes;
    const values = logarithmic ? { values: (_chart, ticks) => ticks.map((tick) => (tick === null ? "" : drawing.short(tick))) } : {};
    return [x, { ...y, ...values, space: TICK_SPACE }];
  }

  function options(title, tone, values) {
    const base = drawing.plot(box, { title, height: HEIGHT, time: over === "at", key: "progress" });
    const logarithmic = distribution === "log" && values.every((value) => value === null || value > 0);
    const count = values.length;
    return {
      ...base,
      axes: axes(base, logarithmic),
      scales: {
        x: { ...base.scales.x, range: around },
        y: logarithmic ? { distr: 3, range: (_chart, low, high) => uPlot.rangeLog(low ?? 1, high ?? 10, 10, false) } : {},
      },
      hooks: { ready: [showValues], setCursor: [showValues] },
      width: width(),
      series: [
        over === "at" ? { label: "UTC", value: (_, at) => drawing.exact(at) } : { label: "step" },
        { label: title, stroke: tone, width: 1.5, spanGaps: false, value: (_, value) => drawing.short(value), points: { show: count < 40 } },
      ],
      plugins: [saved(drawing.color(box, "good"))],
    };
  }

  // A report without a step cannot be placed on the step axis
  const placed = () => (over === "at" ? points : points.filter((point) => typeof point.step === "number").sort((a, b) => a.step - b.step));

  function draw() {
    charts.forEach((chart) => chart.destroy());
    const drawn = placed();
    const shown = DRAWN.filter(([name]) => drawn.some((point) => number(point[name]) !== null));
    const tone = drawing.color(box, "running");
    charts = shown.map(([name, title]) => {
      const values = smooth(drawn.map((point) => number(point[name])));
      return new uPlot(options(title, tone, values), [drawn.map(place), values], box);
    });
    fit();
    box.dataset.drawn = String(charts.length);
  }

  function fit() {
    for (const chart of charts) chart.setSize({ width: chart.root.clientWidth || width(), height: HEIGHT });
  }

  async function ask() {
    try {
      const [series, found] = await Promise.all([drawing.read(box.dataset.series), drawing.read(box.dataset.marks)]);
      points = series.points;
      marks = found.results ?? [];
      draw();
    } catch { /* the text above shows how old the values are; the next request may succeed */ }
  }

  box.addEventListener("click", (event) => {
    const button = event.target.closest(".switch button");
    if (!button) return;
    over = button.dataset.over ?? over;
    distribution = button.dataset.distribution ?? distribution;
    smoothing = Number(button.dataset.smoothing ?? smoothing);
    for (const one of button.parentElement.children) one.setAttribute("aria-pressed", String(one === button));
    draw();
  });
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
