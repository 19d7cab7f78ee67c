// Shared by all plots: colors of the style sheet in the current theme, and axes. All times are UTC, so every day has 24
// hours.
"use strict";
const drawing = (() => {
  const two = (value) => String(value).padStart(2, "0");

  function clock(seconds, exactly = false) {
    const at = new Date(seconds * 1000);
    const time = `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}${exactly ? `:${two(at.getUTCSeconds())}` : ""}`;
    return time === "00:00" ? `${two(at.getUTCMonth() + 1)}-${two(at.getUTCDate())}` : time;
  }

  // Labels of time ticks. With ticks less than a minute apart they include seconds
  const times = (_plot, ticks, _axis, _room, every) => ticks.map((at) => clock(at, every < 60));

  // Enough digits to distinguish the ticks of an axis: a learning rate is far below uPlot's thousandths
  function label(value, apart) {
    if (value === null) return "";
    const order = (number) => Math.floor(Math.log10(Math.abs(number)) + 1e-9);
    const lead = apart / 10 ** order(apart); // 1, 2, 2.5 or 5
    const places = (Math.abs(lead - Math.round(lead)) < 1e-6 ? 0 : 1) - order(apart);
    if (!value || places <= 3) return uPlot.fmtNum(value);
    return Math.abs(value) < 0.001 ? value.toExponential(Math.max(0, order(value) + places)) : value.toFixed(places);
  }

  const short = (value) => (value === null ? "–" : String(Number(value.toPrecision(4))));

  const exact = (at) => (at === null ? "" : new Date(at * 1000).toISOString().slice(0, 19).replace("T", " "));

  // A duration with its largest two units: 45s, 12m30s, 3h5m, 2d4h
  const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  const SPANS = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800];

  function span(seconds) {
    if (seconds === null || seconds === undefined) return "";
    const whole = Math.round(seconds);
    const first = UNITS.findIndex(([, length]) => Math.abs(whole) >= length);
    if (first < 0) return "0s";
    const [[unit, length], next] = [UNITS[first], UNITS[first + 1]];
    const rest = next ? Math.floor((Math.abs(whole) % length) / next[1]) : 0;
    return `${Math.trunc(whole / length)}${unit}${rest ? `${rest}${next[0]}` : ""}`;
  }

  function color(box, name) {
    const probe = document.createElement("i");
    probe.className = name;
    probe.style.color = "var(--fg, var(--muted))";
    box.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  // Options of uPlot that do not depend on the data; `time`: whether the x axis is time
  function plot(box, { title, height, time, key, size = 62 }) {
    const quiet = color(box, "quiet");
    const font = `11px ${getComputedStyle(box).fontFamily}`;
    const axis = { stroke: quiet, font, grid: { stroke: quiet, width: 0.25 }, ticks: { stroke: quiet, width: 0.5 } };
    return {
      title, height,
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      cursor: { sync: { key }, drag: { x: true, y: false } },
      scales: { x: { time } },
      axes: [
        time ? { ...axis, values: times } : axis,
        { ...axis, size, values: (_plot, ticks, _axis, _room, apart) => ticks.map((tick) => label(tick, apart)) },
      ],
    };
  }

  async function read(url) {
    const response = await fetch(url, { headers: { Accept: "application/json" } });
    if (!response.ok) throw new Error(String(response.status));
    return response.json();
  }

  // Redraws when colors or size change, and reloads periodically, as long as the box is on the page: a fragment may be
  // replaced, and its plots must then stop
  function keep(box, { draw, fit, ask, everyMs }) {
    const ends = new AbortController();
    const here = (work) => () => (box.isConnected ? work() : end());
    const room = new ResizeObserver(here(fit));
    const timer = everyMs ? setInterval(here(() => { if (!document.hidden) ask(); }), everyMs) : 0;
    function end() {
      ends.abort();
      room.disconnect();
      clearInterval(timer);
    }
    const options = { signal: ends.signal };
    document.querySelector("[data-theme-switch]")?.addEventListener("click", () => setTimeout(here(draw)), options);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", here(draw), options);
    room.observe(box);
  }

  return { clock, exact, label, span, SPANS, short, color, plot, read, keep };
})();
