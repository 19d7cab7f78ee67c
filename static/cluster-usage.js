// Plots of a cluster's recent load: share of GPUs allocated and utilization, and numbers of running and pending jobs. The data
// is the API's (one mean per step, null without measurements); the text next to the plots summarizes it.
"use strict";
(() => {
  const box = document.getElementById("usage-plots");
  if (!box) return;
  const HEIGHT = 140;
  const EVERY_MS = 60000;
  const FEW = 12;  // with so few values each is drawn as a point, because a single one is not a line
  const words = document.getElementById("usage-words");
  let cluster = box.dataset.cluster;
  let hours = "24";
  let usage = null;
  let charts = [];

  const share = (part, whole) => part.map((value, at) => (value === null || !whole[at] ? null : 100 * value / whole[at]));
  const known = (values) => values.filter((value) => value !== null);
  const mean = (values) => known(values).reduce((sum, value) => sum + value, 0) / known(values).length;
  const least = () => box.clientWidth || 320;

  const PLOTS = [
    { title: "GPUs, percent", low: [0, 100], lines: [["allocated", "series-1", () => share(usage.allocated, usage.gpus)], ["utilization", "series-2", () => usage.utilization]] },
    { title: "jobs", low: null, lines: [["pending", "series-2", () => usage.waiting], ["running", "series-1", () => usage.running]] },
  ];

  function options({ title, low, lines }) {
    const common = drawing.plot(box, { title, height: HEIGHT, time: true, key: "usage", size: 46 });
    const [begin, end] = ends();
    return {
      ...common,
      width: charts[0]?.root.clientWidth || Math.min(least(), 640),
      scales: { x: { time: true, range: () => [begin, end] }, y: { range: low ? () => low : (_, __, most) => [0, Math.max(5, most * 1.05)] } },
      series: [
        { label: "UTC", value: (_, at) => drawing.exact(at) },
        ...lines.map(([label, tone], at) => ({ label, stroke: drawing.color(box, tone), width: 1.5, dash: at ? [5, 3] : undefined, spanGaps: false, points: { show: (_, at) => known(lines[at - 1][2]()).length < FEW, size: 4 }, value: (_, value) => (value === null ? "–" : value.toFixed(low ? 0 : 1)) })),
      ],
    };
  }

  // For a new cluster, show at most one hour without data
  const ends = () => {
    const begin = Date.parse(usage.begin) / 1000;
    const end = begin + usage.step_s * usage.allocated.length;
    const first = usage.allocated.findIndex((value) => value !== null);
    return [Math.min(begin + usage.step_s * Math.max(first, 0), end - 3600), end];
  };

  function describe() {
    const allocated = share(usage.allocated, usage.gpus);
    if (!known(allocated).length) {
      words.textContent = "No figures for this period yet. They are recorded once per minute.";
      return;
    }
    const parts = [`Average ${mean(allocated).toFixed(0)}% allocated`];
    if (known(usage.utilization).length) parts.push(`${mean(usage.utilization).toFixed(0)}% utilized`);
    words.textContent = `${parts.join(", ")}; peak queue ${Math.round(Math.max(...known(usage.waiting)))}`;
  }

  function draw() {
    if (!usage) return;
    const made = PLOTS.map(options);
    charts.forEach((chart) => chart.destroy());
    const at = usage.allocated.map((_, number) => Date.parse(usage.begin) / 1000 + number * usage.step_s);
    charts = PLOTS.map((plot, number) => new uPlot(made[number], [at, ...plot.lines.map(([, , values]) => values())], box));
    fit();
    describe();
    box.dataset.drawn = `${cluster} ${hours}`;
  }

  function fit() {
    for (const chart of charts) chart.setSize({ width: chart.root.clientWidth || least(), height: HEIGHT });
  }

  async function ask() {
    const selection = [cluster, hours].join();
    try {
      const response = await drawing.read(`${box.dataset.url.replace("CLUSTER", cluster)}?hours=${hours}`);
      if (selection !== [cluster, hours].join()) return;  // the selection changed meanwhile
      usage = response;
      draw();
    } catch { /* the header shows that the page is stale; the next request may succeed */ }
  }

  document.getElementById("usage").addEventListener("click", (event) => {
    const button = event.target.closest("[data-hours], [data-cluster-name]");
    if (!button) return;
    hours = button.dataset.hours ?? hours;
    cluster = button.dataset.clusterName ?? cluster;
    for (const one of button.parentElement.children) one.setAttribute("aria-pressed", String(one === button));
    ask();
  });
  // Drawing costs a phone more time than everything above it on the page, and most visits never scroll this far
  const onScreen = new IntersectionObserver(([seen]) => {
    if (!seen.isIntersecting) return;
    onScreen.disconnect();
    drawing.keep(box, { draw, fit, ask, everyMs: EVERY_MS });
    ask();
  }, { rootMargin: "200px" });
  onScreen.observe(box);
})();
