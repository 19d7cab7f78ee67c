// Draws the progress of a job: loss, step time and other reported values, one plot below the other with a common axis.
// The data is the API's; the sections around the plots show the newest values as text.
"use strict";
function plotsOf(box) {
  const HEIGHT = 150;
  const EVERY_MS = 15000;
  const DRAWN = [["loss", "loss"], ["step_time_s", "seconds per step"], ["grad_norm", "gradient norm"], ["learning_rate", "learning rate"]];
  let over = "at";
  let points = [];
  let marks = [];
  let charts = [];
  const width = () => box.querySelector(".uplot")?.clientWidth || Math.min(box.clientWidth, 640);
  const number = (value) => (typeof value === "number" ? value : null);  // NaN is a string in JSON, and becomes a gap
  const place = (point) => (over === "at" ? Date.parse(point.at) / 1000 : point.step);

  // Checkpoints are vertical lines: a restart continues from one of them
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
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
        }
        ctx.restore();
      }],
    },
  });

  function options(title, tone, count) {
    return {
      ...drawing.plot(box, { title, height: HEIGHT, time: over === "at", key: "progress" }),
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
    charts = shown.map(([name, title]) =>
      new uPlot(options(title, tone, drawn.length), [drawn.map(place), drawn.map((point) => number(point[name]))], box));
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
    const button = event.target.closest("[data-over]");
    if (!button) return;
    over = button.dataset.over;
    box.querySelectorAll("[data-over]").forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
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
