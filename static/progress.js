// Draws how a job goes: loss, step time and what else it reports, one below the other over the same axis.
// The numbers are the API's; the sections around the plots say the newest of them in words.
"use strict";
function plotsOf(box) {
  const HEIGHT = 150;
  const EVERY_MS = 15000;
  const DRAWN = [["loss", "loss"], ["step_time_s", "seconds a step"], ["grad_norm", "gradient norm"], ["learning_rate", "learning rate"]];
  let over = "at";
  let points = [];
  let marks = [];
  let charts = [];
  // As everywhere here: UTC, and a day of 24 hours
  const two = (value) => String(value).padStart(2, "0");
  const clock = (seconds) => {
    const at = new Date(seconds * 1000);
    const time = `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}`;
    return time === "00:00" ? `${two(at.getUTCMonth() + 1)}-${two(at.getUTCDate())}` : time;
  };
  const width = () => box.querySelector(".uplot")?.clientWidth || Math.min(box.clientWidth, 640);
  const number = (value) => (typeof value === "number" ? value : null);  // NaN comes as a word, and leaves a gap

  function colour(name) {
    const probe = document.createElement("i");
    probe.className = name;
    probe.style.color = "var(--fg, var(--muted))";
    box.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  const xs = () => points.map((point) => (over === "at" ? Date.parse(point.at) / 1000 : point.step));

  // Checkpoints are lines across the plot: what was saved by then can be started from
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

  function options(title, tone) {
    const quiet = colour("quiet");
    const axis = { stroke: quiet, grid: { stroke: quiet, width: 0.25 }, ticks: { stroke: quiet, width: 0.5 } };
    return {
      title, width: width(), height: HEIGHT,
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      cursor: { sync: { key: "progress" }, drag: { x: true, y: false } },
      scales: { x: { time: over === "at" } },
      axes: [over === "at" ? { ...axis, values: (_, ticks) => ticks.map(clock) } : axis, { ...axis, size: 62 }],
      series: [
        over === "at" ? { label: "UTC", value: (_, at) => (at === null ? "" : new Date(at * 1000).toISOString().slice(0, 19).replace("T", " ")) } : { label: "step" },
        { label: title, stroke: tone, width: 1.5, spanGaps: false, points: { show: points.length < 40 } },
      ],
      plugins: [saved(colour("good"))],
    };
  }

  function draw() {
    charts.forEach((chart) => chart.destroy());
    if (over === "step") points = points.filter((point) => point.step !== null).sort((a, b) => a.step - b.step);
    const shown = DRAWN.filter(([name]) => points.some((point) => number(point[name]) !== null));
    charts = shown.map(([name, title]) =>
      new uPlot(options(title, colour("running")), [xs(), points.map((point) => number(point[name]))], box));
    fit();
    box.dataset.drawn = String(charts.length);
  }

  function fit() {
    for (const chart of charts) chart.setSize({ width: chart.root.clientWidth || width(), height: HEIGHT });
  }

  async function read(url) {
    const response = await fetch(url, { headers: { Accept: "application/json" } });
    if (!response.ok) throw new Error(String(response.status));
    return response.json();
  }

  async function ask() {
    try {
      const [series, found] = await Promise.all([read(box.dataset.series), read(box.dataset.marks)]);
      points = series.points;
      marks = found.results ?? [];
      draw();
    } catch { /* the words above say how old they are; the next look may succeed */ }
  }

  box.addEventListener("click", (event) => {
    const button = event.target.closest("[data-over]");
    if (!button) return;
    over = button.dataset.over;
    box.querySelectorAll("[data-over]").forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
    ask();
  });
  document.querySelector("[data-theme-switch]")?.addEventListener("click", () => setTimeout(draw));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new ResizeObserver(fit).observe(box);
  if (box.dataset.live) setInterval(() => { if (!document.hidden) ask(); }, EVERY_MS);
  ask();
}

(() => {
  // A job that begins to report brings its plots with the fragment
  const begin = () => {
    const box = document.getElementById("plots");
    if (!box || box.dataset.begun) return;
    box.dataset.begun = "1";
    plotsOf(box);
  };
  document.addEventListener("htmx:after:swap", begin);
  begin();
})();
