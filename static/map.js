// The map of a cluster: one canvas, a cell for each GPU, blocks of racks under their leaf switch. The server sends
// numbers (jobs/mapping.py); here they become places and colours. What a colour says is also said by the form of the
// cell (hollow, filled, crossed, dotted) and in words for the cell that is pointed at.
"use strict";
(() => {
  const root = document.getElementById("map");
  if (!root) return;
  const canvas = document.getElementById("map-canvas");
  const words = document.getElementById("map-words");
  const legend = document.getElementById("map-legend");
  const by = document.getElementById("map-by");
  const pen = canvas.getContext("2d");
  const PAUSE_MS = 2000;  // between two answers, however fast the queue moves
  const FREE = -1, OTHERS = -2, FOREIGN = -3;
  const ACROSS = 4, GAP = 1;

  let data = null;   // what the server sent
  let cells = [];    // {node, gpu, index, x, y}, in the order of the server's lists
  let size = 10;
  let chosen = -1;   // the cell that is pointed at
  let asking = false, again = false;

  // --- colours: those of the style sheet, as this theme has them

  const probe = document.createElement("span");
  probe.hidden = true;
  root.append(probe);
  const known = new Map();
  function colour(name) {
    if (!known.has(name)) {
      probe.style.color = `var(--${name})`;
      known.set(name, getComputedStyle(probe).color);
    }
    return known.get(name);
  }
  const dark = () => colour("panel").match(/\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) < 300;

  function hue(text) {
    let number = 7;
    for (const letter of text) number = (number * 31 + letter.charCodeAt(0)) % 3600;
    return `hsl(${number / 10} 60% ${dark() ? 58 : 45}%)`;
  }

  // Pale to strong in one hue: more is stronger in both themes
  const scale = (part, tint) => `hsl(${tint} 75% ${dark() ? 16 + 50 * part : 92 - 52 * part}%)`;

  function fill(cell) {
    const who = data.who[cell.index];
    switch (by.value) {
      case "job": return who >= 0 ? hue(data.jobs[who][0]) : who === FREE ? null : colour("quiet-fill");
      case "team": return who >= 0 ? hue(data.jobs[who][2]) : who === FREE ? null : colour("quiet-fill");
      case "busy": return data.busy[cell.index] < 0 ? null : scale(data.busy[cell.index] / 100, 215);
      case "hot": return data.hot[cell.index] < 0 ? null : scale(Math.min(1, Math.max(0, (data.hot[cell.index] - 30) / 60)), 14);
      default:
        if (!cell.node[6]) return colour(`${cell.node[5]}-fill`);
        return who === FREE ? null : colour(who === FOREIGN ? "quiet-fill" : "running-fill");
    }
  }

  // --- places

  function place() {
    const width = canvas.clientWidth;
    size = data.who.length > 4000 ? 6 : data.who.length > 800 ? 9 : data.who.length > 200 ? 13 : 20;
    const step = size + GAP, label = 14;
    cells = [];
    labels = [];
    let index = 0, x = 0, y = 0, tallest = 0;
    for (const rack of racks()) {
      const perRow = Math.max(1, Math.min(rack.nodes.length, rack.nodes.length > 8 ? Math.ceil(Math.sqrt(rack.nodes.length * 1.5)) : 4));
      const rowHeight = Math.max(...rack.nodes.map((node) => Math.ceil(node[3] / ACROSS))) * step + 4;
      const nodeWidth = ACROSS * step + 4;
      const fit = Math.max(1, Math.min(perRow, Math.floor(width / nodeWidth)));
      const blockWidth = fit * nodeWidth;
      const blockHeight = label + Math.ceil(rack.nodes.length / fit) * rowHeight;
      if (x && x + blockWidth > width) { x = 0; y += tallest + 6; tallest = 0; }
      labels.push({ text: rack.title, x, y: y + 10, width: blockWidth - 6 });
      rack.nodes.forEach((node, number) => {
        const left = x + (number % fit) * nodeWidth;
        const top = y + label + Math.floor(number / fit) * rowHeight;
        for (let gpu = 0; gpu < node[3]; gpu += 1) {
          cells.push({ node, gpu, index, x: left + (gpu % ACROSS) * step, y: top + Math.floor(gpu / ACROSS) * step });
          index += 1;
        }
      });
      tallest = Math.max(tallest, blockHeight);
      x += blockWidth + 8;
    }
    return y + tallest;
  }

  let labels = [];
  function racks() {
    const found = [];
    for (const node of data.nodes) {
      const title = [node[1], node[2]].filter(Boolean).join(" · ") || "no rack";
      if (!found.length || found[found.length - 1].title !== title) found.push({ title, nodes: [] });
      found[found.length - 1].nodes.push(node);
    }
    return found;
  }

  // --- drawing

  function draw() {
    if (!data) return;
    const begun = performance.now();
    known.clear();
    const height = Math.max(place(), 40), ratio = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = height * ratio;
    pen.scale(ratio, ratio);
    pen.font = getComputedStyle(words).font.replace(/^.*?px/, "11px");
    pen.fillStyle = colour("muted");
    for (const label of labels) pen.fillText(label.text, label.x, label.y, label.width);
    for (const cell of cells) cut(cell);
    mark();
    key();
    canvas.dataset.drawnMs = Math.round(performance.now() - begun);
    canvas.dataset.cells = cells.length;
  }

  function cut(cell) {
    const paint = fill(cell);
    if (paint) {
      pen.fillStyle = paint;
      pen.fillRect(cell.x, cell.y, size, size);
    } else {
      pen.strokeStyle = colour("edge");
      pen.strokeRect(cell.x + 0.5, cell.y + 0.5, size - 1, size - 1);
    }
    if (!cell.node[6]) {
      pen.strokeStyle = paint ? colour("panel") : colour("bad");
      pen.beginPath();
      pen.moveTo(cell.x, cell.y + size);
      pen.lineTo(cell.x + size, cell.y);
      pen.stroke();
    } else if (data.who[cell.index] <= OTHERS && by.value !== "busy" && by.value !== "hot") {
      pen.fillStyle = colour("panel");
      pen.fillRect(cell.x + size / 2 - 1, cell.y + size / 2 - 1, 2, 2);
    }
  }

  // What is pointed at, and the rest of the same job
  function mark() {
    const cell = cells[chosen];
    if (!cell) return;
    const who = data.who[cell.index];
    pen.strokeStyle = colour("text");
    if (who >= 0) for (const other of cells) if (data.who[other.index] === who) pen.strokeRect(other.x - 0.5, other.y - 0.5, size + 1, size + 1);
    pen.lineWidth = 2;
    pen.strokeRect(cell.x - 1, cell.y - 1, size + 2, size + 2);
    pen.lineWidth = 1;
  }

  function key() {
    const rows = {
      state: [["running", "", "held"], ["", "hollow", "free"], ["quiet", "", "held from outside"], ["bad", "crossed", "closed, in the colour of why"], ["", "", "· of another team"]],
      job: [["", "", "one colour a job"], ["", "hollow", "free"], ["quiet", "", "of another team or from outside"]],
      team: [["", "", "one colour a team"], ["", "hollow", "free"], ["quiet", "", "of another team or from outside"]],
      busy: [["", "", "pale: idle, strong: busy"], ["", "hollow", "no reading"]],
      hot: [["", "", "pale: 30 °C, strong: 90 °C"], ["", "hollow", "no reading"]],
    }[by.value];
    legend.replaceChildren(...rows.map(([tone, form, text]) => {
      const row = document.createElement("li");
      if (tone || form) {
        const swatch = document.createElement("span");
        swatch.className = `swatch ${tone} ${form}`;
        row.append(swatch);
      }
      row.append(text);
      return row;
    }));
  }

  // --- words for one cell

  function say(cell) {
    const [name, rack, leaf, , state] = cell.node;
    const who = data.who[cell.index], busy = data.busy[cell.index], hot = data.hot[cell.index];
    const holder = who >= 0 ? `${data.jobs[who][1]} of ${data.jobs[who][2]} (${data.jobs[who][0]})`
      : who === FREE ? "free" : who === FOREIGN ? "held by a job from outside" : "held by a job of another team";
    const parts = [`${name} GPU ${cell.gpu}`, state, holder];
    if (busy >= 0) parts.push(`${busy} % busy`);
    if (hot >= 0) parts.push(`${hot} °C`);
    if (rack || leaf) parts.push([rack && `rack ${rack}`, leaf && `switch ${leaf}`].filter(Boolean).join(", "));
    return parts.join(" · ");
  }

  function choose(index) {
    if (index === chosen || !cells[index]) return;
    chosen = index;
    words.textContent = say(cells[index]);
    draw();
  }

  function open(index) {
    const cell = cells[index];
    if (!cell) return;
    const who = data.who[cell.index];
    location.href = who >= 0 ? root.dataset.job.replace("JOB", data.jobs[who][0])
      : root.dataset.node.replace("NODE", encodeURIComponent(cell.node[0]));
  }

  function under(event) {
    const box = canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    return cells.findIndex((cell) => x >= cell.x && x <= cell.x + size && y >= cell.y && y <= cell.y + size);
  }

  // The nearest cell in that direction; sideways in its row
  function beside(from, dx, dy) {
    let best = -1, least = Infinity;
    const at = cells[from];
    cells.forEach((cell, index) => {
      const x = cell.x - at.x, y = cell.y - at.y;
      const ahead = dx ? x * dx : y * dy, aside = Math.abs(dx ? y : x);
      if (ahead <= 0) return;
      const far = ahead + aside * 4;
      if (far < least) { least = far; best = index; }
    });
    return best;
  }

  const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    if (!cells.length) return;
    if (event.key === "Enter") open(chosen);
    else if (KEYS[event.key]) {
      event.preventDefault();
      choose(chosen < 0 ? 0 : beside(chosen, ...KEYS[event.key]));
    }
  });
  canvas.addEventListener("mousemove", (event) => choose(under(event)));
  canvas.addEventListener("click", (event) => open(under(event)));

  // --- asking: at the beginning, and when the queue or the nodes moved; never twice at once

  async function ask() {
    if (asking) { again = true; return; }
    asking = true;
    try {
      const answer = await fetch(root.dataset.url, { credentials: "same-origin" });
      if (answer.ok && !answer.redirected) {
        data = await answer.json();
        draw();
        if (cells[chosen]) words.textContent = say(cells[chosen]);
      }
    } catch { /* the header says that it is stale; the next hint asks again */ }
    setTimeout(() => {
      asking = false;
      if (again) { again = false; ask(); }
    }, PAUSE_MS);
  }

  const hear = () => { if (!document.hidden) ask(); };
  document.body.addEventListener("queue", hear);
  document.body.addEventListener("nodes", hear);
  setInterval(hear, 30000);
  by.addEventListener("change", draw);
  new ResizeObserver(() => { if (data && canvas.width !== Math.floor(canvas.clientWidth * (window.devicePixelRatio || 1))) draw(); }).observe(root);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new MutationObserver(draw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  ask();
})();
