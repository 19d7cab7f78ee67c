// What a cluster did lately: the share of its GPUs that was held and busy, and how many jobs ran and waited. The numbers
// are the API's (one mean for each step, null where nobody looked); the words beside the plots say what they come to.
"use strict";
(() => {
  const box = document.getElementById("course-plots");
  if (!box) return;
  const HEIGHT = 140;
  const EVERY_MS = 60000;
  const FEW = 12;  // so few are shown as points: a lone one is no line
  const words = document.getElementById("course-words");
  let cluster = box.dataset.cluster;
  let hours = "24";
  let course = null;
  let charts = [];

  const share = (part, whole) => part.map((value, at) => (value === null || !whole[at] ? null : 100 * value / whole[at]));
  const known = (values) => values.filter((value) => value !== null);
  const mean = (values) => known(values).reduce((sum, value) => sum + value, 0) / known(values).length;
  const least = () => box.clientWidth || 320;

  const PLOTS = [
    { title: "GPUs, percent", low: [0, 100], lines: [["held", "running", () => share(course.held, course.gpus)], ["busy", "good", () => course.busy]] },
    { title: "jobs", low: null, lines: [["waiting", "waiting", () => course.waiting], ["running", "running", () => course.running]] },
  ];

  function options({ title, low, lines }) {
    const common = drawing.plot(box, { title, height: HEIGHT, time: true, key: "course", size: 46 });
    const [begin, end] = ends();
    return {
      ...common,
      width: charts[0]?.root.clientWidth || Math.min(least(), 640),
      scales: { x: { time: true, range: () => [begin, end] }, y: { range: low ? () => low : (_, __, most) => [0, Math.max(5, most * 1.05)] } },
      series: [
        { label: "UTC", value: (_, at) => drawing.exact(at) },
        ...lines.map(([label, tone], at) => ({ label, stroke: drawing.colour(box, tone), width: 1.5, dash: at ? [5, 3] : undefined, spanGaps: false, points: { show: (_, at) => known(lines[at - 1][2]()).length < FEW, size: 4 }, value: (_, value) => (value === null ? "–" : value.toFixed(low ? 0 : 1)) })),
      ],
    };
  }

  // Of a cluster that was entered lately, no more than an hour of nothing
  const ends = () => {
    const begin = Date.parse(course.begin) / 1000;
    const end = begin + course.step_s * course.held.length;
    const first = course.held.findIndex((value) => value !== null);
    return [Math.min(begin + course.step_s * Math.max(first, 0), end - 3600), end];
  };

  function say() {
    const held = share(course.held, course.gpus);
    if (!known(held).length) {
      words.textContent = "Figures are written down once a minute; there are none of this time yet.";
      return;
    }
    const parts = [`${mean(held).toFixed(0)} % of the GPUs held in the mean`];
    if (known(course.busy).length) parts.push(`${mean(course.busy).toFixed(0)} % busy`);
    parts.push(`at most ${Math.round(Math.max(...known(course.waiting)))} jobs waited`);
    words.textContent = parts.join(", ");
  }

  function draw() {
    if (!course) return;
    const made = PLOTS.map(options);
    charts.forEach((chart) => chart.destroy());
    const at = course.held.map((_, number) => Date.parse(course.begin) / 1000 + number * course.step_s);
    charts = PLOTS.map((plot, number) => new uPlot(made[number], [at, ...plot.lines.map(([, , values]) => values())], box));
    fit();
    say();
    box.dataset.drawn = `${cluster} ${hours}`;
  }

  function fit() {
    for (const chart of charts) chart.setSize({ width: chart.root.clientWidth || least(), height: HEIGHT });
  }

  async function ask() {
    const wanted = [cluster, hours].join();
    try {
      const found = await drawing.read(`${box.dataset.url.replace("CLUSTER", cluster)}?hours=${hours}`);
      if (wanted !== [cluster, hours].join()) return;  // something else was chosen meanwhile
      course = found;
      draw();
    } catch { /* the header says that it is stale; the next look may succeed */ }
  }

  document.getElementById("course").addEventListener("click", (event) => {
    const button = event.target.closest("[data-hours], [data-cluster-name]");
    if (!button) return;
    hours = button.dataset.hours ?? hours;
    cluster = button.dataset.clusterName ?? cluster;
    for (const one of button.parentElement.children) one.setAttribute("aria-pressed", String(one === button));
    ask();
  });
  drawing.keep(box, { draw, fit, ask, everyMs: EVERY_MS });
  ask();
})();
