// The map of a cluster: one canvas, one cell per GPU, racks in blocks under their leaf switch. The server sends numbers
// (jobs/core/gpu_map.py); here they become positions and colors. What a color means is also shown by the form of the
// cell (hollow, filled, crossed, dotted, large or small) and as text for the cell under the pointer. The map shows the
// present and updates itself, or a past moment, which the slider selects and the URL keeps.
"use strict";
(() => {
  const root = document.getElementById("map");
  if (!root) return;
  const canvas = document.getElementById("map-canvas");
  const words = document.getElementById("map-words");
  const legend = document.getElementById("map-legend");
  const by = document.getElementById("map-by");
  const card = document.getElementById("map-card");
  const top = canvas.getContext("2d");
  // The cells are drawn here once and copied, so that moving the pointer over ten thousand cells draws only the outline
  const base = document.createElement("canvas");
  const pen = base.getContext("2d");
  const PAUSE_MS = 2000;  // minimum time between two requests, however fast the queue changes
  const FREE = -1, OTHERS = -2, FOREIGN = -3;
  const ACROSS = 4, GAP = 1;

  let data = null;   // the server's response
  let errors = null; // times of the last errors, loaded only if they determine the color
  let cells = [];    // {node, gpu, index, x, y}, in the order of the server's lists
  let size = 10;
  let chosen = -1;   // the cell under the pointer
  let asking = false, again = false, resting = null;

  // --- colors of the style sheet, in the current theme

  const probe = document.createElement("span");
  probe.hidden = true;
  root.append(probe);
  const known = new Map();
  function color(name) {
    if (!known.has(name)) {
      probe.style.color = `var(--${name})`;
      known.set(name, getComputedStyle(probe).color);
    }
    return known.get(name);
  }
  const dark = () => color("panel").match(/\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) < 300;

  // A job or team keeps its color while the page is open. The golden angle separates the hues of those that follow each
  // other, which are often neighbors, and three brightnesses separate those whose hues come close
  const GOLDEN_ANGLE = 137.508;
  const slots = new Map();
  function hue(text) {
    if (!slots.has(text)) slots.set(text, slots.size);
    const slot = slots.get(text);
    const light = (dark() ? [62, 48, 74] : [45, 33, 60])[slot % 3];
    return `hsl(${(slot * GOLDEN_ANGLE) % 360} 62% ${light}%)`;
  }

  // Pale to strong in one hue; more is stronger in both themes
  const scale = (part, tint) => `hsl(${tint} 75% ${dark() ? 16 + 50 * part : 92 - 52 * part}%)`;

  function fill(cell) {
    const who = data.who[cell.index];
    switch (by.value) {
      case "job": return who >= 0 ? hue(data.jobs[who][0]) : who === FREE ? null : color("quiet-fill");
      case "team": return who >= 0 ? hue(data.jobs[who][2]) : who === FREE ? null : color("quiet-fill");
      case "busy": return data.busy[cell.index] < 0 ? null : scale(data.busy[cell.index] / 100, 215);
      case "error": return age(cell) === null ? null : scale(1 - age(cell).step / AGES.length, 0);
      case "hot": return data.hot[cell.index] < 0 ? null : scale(Math.min(1, Math.max(0, (data.hot[cell.index] - 30) / 60)), 14);
      default:
        if (!cell.node[6]) return color(`${cell.node[5]}-fill`);
        return who === FREE ? null : color(who === FOREIGN ? "quiet-fill" : "running-fill");
    }
  }

  // The newest error of the GPU or of its node, and its age at that time
  const AGES = [[3600, "an hour"], [86400, "a day"], [7 * 86400, "a week"], [30 * 86400, "30 days"]];
  function age(cell) {
    const name = cell.node[0];
    const found = [errors?.get(`${name} ${cell.gpu}`), errors?.get(`${name} -1`)].filter(Boolean);
    if (!found.length) return null;
    const [at, words] = found.reduce((one, other) => (other[0] > one[0] ? other : one));
    const step = AGES.findIndex(([most]) => data.at - at < most);
    return step < 0 ? null : { at, words, step };
  }

  function spoken(seconds) {
    const [days, hours, minutes] = [86400, 3600, 60].map((unit) => Math.floor(seconds / unit));
    return days ? `${days}d${hours % 24 && days < 10 ? `${hours % 24}h` : ""}` : hours ? `${hours}h${minutes % 60 ? `${minutes % 60}m` : ""}` : `${minutes}m`;
  }

  // --- positions

  // The largest cells with which the map fits into the window, without scrolling
  const SMALLEST = 6, LARGEST = 64;
  function placeAll() {
    const room = window.innerHeight - (canvas.getBoundingClientRect().top + window.scrollY) - 24;
    let [fits, tooLarge] = [SMALLEST, LARGEST + 1];
    while (tooLarge - fits > 1) {
      const middle = Math.floor((fits + tooLarge) / 2);
      if (place(middle) <= room) fits = middle;
      else tooLarge = middle;
    }
    return place(fits);
  }

  function place(wanted) {
    const width = canvas.clientWidth;
    size = wanted;
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
    const ratio = window.devicePixelRatio || 1;
    canvas.style.height = `${placeAll()}px`;
    const height = canvas.clientHeight;  // at least its min-height, with which the page does not jump
    base.width = canvas.width = canvas.clientWidth * ratio;
    base.height = canvas.height = height * ratio;
    pen.scale(ratio, ratio);
    pen.font = getComputedStyle(words).font.replace(/^.*?px/, "11px");
    pen.fillStyle = color("muted");
    for (const label of labels) pen.fillText(label.text, label.x, label.y, label.width);
    for (const cell of cells) cut(cell);
    outline();
    key();
    canvas.dataset.drawnMs = Math.round(performance.now() - begun);
    canvas.dataset.cells = cells.length;
  }

  function cut(cell) {
    const paint = fill(cell);
    if (paint && by.value === "error") {
      const less = Math.min(age(cell).step, Math.floor(size / 2) - 1) * (size > 10 ? 2 : 1);  // older ones are smaller
      pen.fillStyle = paint;
      pen.fillRect(cell.x + less / 2, cell.y + less / 2, size - less, size - less);
    } else if (paint) {
      pen.fillStyle = paint;
      pen.fillRect(cell.x, cell.y, size, size);
    } else {
      pen.strokeStyle = color("edge");
      pen.strokeRect(cell.x + 0.5, cell.y + 0.5, size - 1, size - 1);
    }
    if (!cell.node[6]) {
      pen.strokeStyle = paint ? color("panel") : color("bad");
      pen.beginPath();
      pen.moveTo(cell.x, cell.y + size);
      pen.lineTo(cell.x + size, cell.y);
      pen.stroke();
    } else if (data.who[cell.index] <= OTHERS && !["busy", "hot", "error"].includes(by.value)) {
      pen.fillStyle = color("panel");
      pen.fillRect(cell.x + size / 2 - 1, cell.y + size / 2 - 1, 2, 2);
    }
  }

  // Copies the cells, and outlines the one under the pointer and the others of its job
  function outline() {
    const ratio = window.devicePixelRatio || 1;
    top.setTransform(1, 0, 0, 1, 0, 0);
    top.clearRect(0, 0, canvas.width, canvas.height);
    if (base.width && base.height) top.drawImage(base, 0, 0);
    const cell = cells[chosen];
    if (!cell) return;
    top.setTransform(ratio, 0, 0, ratio, 0, 0);
    const who = data.who[cell.index];
    top.strokeStyle = color("text");
    if (who >= 0) for (const other of cells) if (data.who[other.index] === who) top.strokeRect(other.x - 0.5, other.y - 0.5, size + 1, size + 1);
    top.lineWidth = 2;
    top.strokeRect(cell.x - 1, cell.y - 1, size + 2, size + 2);
    top.lineWidth = 1;
  }

  function key() {
    const rows = {
      state: [["running", "", "allocated"], ["", "hollow", "free"], ["quiet", "", "foreign job"], ["bad", "crossed", "unavailable, in the color of the reason"], ["", "", "· job of another team"]],
      job: [["", "", "one color per job"], ["", "hollow", "free"], ["quiet", "", "another team or foreign job"]],
      team: [["", "", "one color per team"], ["", "hollow", "free"], ["quiet", "", "another team or foreign job"]],
      busy: [["", "", "pale: idle, strong: busy"], ["", "hollow", "no data"]],
      hot: [["", "", "pale: 30 °C, strong: 90 °C"], ["", "hollow", "no data"]],
      error: [...AGES.map(([, text], step) => [scale(1 - step / AGES.length, 0), "", `within ${text}`]), ["", "hollow", "none in 30 days"]],
    }[by.value];
    legend.replaceChildren(...rows.map(([tone, form, text]) => {
      const row = document.createElement("li");
      if (tone || form) {
        const swatch = document.createElement("span");
        if (tone.startsWith("hsl")) swatch.style.background = tone;
        swatch.className = tone.startsWith("hsl") ? "swatch" : `swatch ${tone} ${form}`;
        row.append(swatch);
      }
      row.append(text);
      return row;
    }));
  }

  // --- text for one cell

  // The jobs of a GPU that several share, each with its part; null if it is not shared
  function sharers(cell) {
    const on = data.shares.find(([index]) => index === cell.index);
    return on && on.slice(1).map(([who, milli]) =>
      `${milli / 1000} ${who >= 0 ? `${data.jobs[who][1]} of ${data.jobs[who][2]} (${data.jobs[who][0]})` : "job of another team"}`);
  }

  // "n1 GPU 3", or "n1 slice 9 (MIG 1g.10gb)"
  function cellName(cell) {
    const found = Object.entries(data.slices).find(([, cells]) => cells.includes(cell.index));
    return `${cell.node[0]} ${found ? `slice ${cell.gpu} (MIG ${found[0]})` : `GPU ${cell.gpu}`}`;
  }

  function say(cell) {
    const [, rack, leaf, , state] = cell.node;
    const who = data.who[cell.index], busy = data.busy[cell.index], hot = data.hot[cell.index];
    const holder = who >= 0 ? `${data.jobs[who][1]} of ${data.jobs[who][2]} (${data.jobs[who][0]})`
      : who === FREE ? "free" : who === FOREIGN ? "foreign job" : "job of another team";
    const parts = [cellName(cell), state, ...(sharers(cell) || [holder])];
    if (busy >= 0) parts.push(`${busy}% busy`);
    if (hot >= 0) parts.push(`${hot} °C`);
    const code = data.xid.find(([index]) => index === cell.index);
    if (code) parts.push(`Xid ${code[1]}`);
    const last = by.value === "error" && age(cell);
    if (last) parts.push(`last error ${spoken(data.at - last.at)} earlier: ${last.words}`);
    else if (by.value === "error") parts.push("no error in 30 days");
    if (rack || leaf) parts.push([rack && `rack ${rack}`, leaf && `switch ${leaf}`].filter(Boolean).join(", "));
    return parts.join(" · ");
  }

  function choose(index) {
    if (!cells[index]) { hide(); return; }
    if (index === chosen && !card.hidden) return;
    chosen = index;
    words.textContent = say(cells[index]);
    outline();
    describe();
    if (needsErrors()) ask();
  }

  // --- the card beside the chosen cell. It repeats the text above the map, so screen readers skip it

  const line = (label, text) => {
    const name = document.createElement("dt"), value = document.createElement("dd");
    name.textContent = label;
    value.textContent = text;
    return [name, value];
  };

  function describe() {
    const cell = cells[chosen];
    const [, , , , state] = cell.node;
    const who = data.who[cell.index], busy = data.busy[cell.index], hot = data.hot[cell.index];
    const title = document.createElement("strong"), list = document.createElement("dl");
    title.textContent = cellName(cell);
    const shared = sharers(cell);
    if (shared) list.append(...line("Jobs", shared.join("; ")));
    else if (who >= 0) {
      const [id, job, team, user] = data.jobs[who];
      list.append(...line("Job", `${job} (${id})`), ...line("User", `${user}, ${team}`));
    } else list.append(...line("Job", who === FREE ? "none" : who === FOREIGN ? "foreign job" : "job of another team"));
    list.append(...line("Utilization", busy < 0 ? "no data" : `${busy}%`), ...line("Temperature", hot < 0 ? "no data" : `${hot} °C`));
    list.append(...line("Last error", lastError(cell)));
    card.replaceChildren(title, ` ${state}`, list);
    card.hidden = false;
    attach(cell);
  }

  function lastError(cell) {
    if (!errors) return "loading";
    const last = age(cell);
    return last ? `${last.words}, ${spoken(data.at - last.at)} earlier` : "none in 30 days";
  }

  // Right of the cell, or left of it at the right edge; never below the window
  function attach(cell) {
    const left = canvas.offsetLeft + cell.x, width = card.offsetWidth, gap = 10;
    const right = left + size + gap;
    card.style.left = `${right + width <= root.clientWidth ? right : Math.max(4, left - width - gap)}px`;
    const below = window.innerHeight - root.getBoundingClientRect().top - card.offsetHeight - 8;
    card.style.top = `${Math.max(0, Math.min(canvas.offsetTop + cell.y, Math.max(canvas.offsetTop, below)))}px`;
  }

  function hide() { card.hidden = true; }

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

  // The nearest cell in that direction; horizontally within its row
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
    else if (event.key === "Escape") hide();
    else if (KEYS[event.key]) {
      event.preventDefault();
      choose(chosen < 0 ? 0 : beside(chosen, ...KEYS[event.key]));
    }
  });
  canvas.addEventListener("mousemove", (event) => choose(under(event)));
  canvas.addEventListener("mouseleave", hide);
  canvas.addEventListener("blur", hide);
  // On a touch screen the first touch of a cell shows its card, and the second one opens it
  let touched = -1;
  canvas.addEventListener("pointerdown", (event) => { touched = card.hidden ? -1 : chosen; });
  canvas.addEventListener("click", (event) => {
    const index = under(event);
    if (event.pointerType === "touch" && index !== touched) choose(index);
    else open(index);
  });

  // --- requests: at the start, when the queue or the nodes changed, and for each selected moment. Never two at a time;
  // of several moments selected meanwhile only the last is requested

  const MOST_KEPT = 60;
  const kept = new Map();  // frames of the past, which do not change

  const written = (seconds) => new Date(seconds * 1000).toISOString().replace(".000Z", "Z");
  const address = (url) => (moment === null ? url : `${url}?at=${written(moment)}`);

  async function read(url) {
    const answer = await fetch(url, { credentials: "same-origin" });
    if (answer.ok && !answer.redirected) return answer.json();
    throw Object.assign(new Error(answer.statusText), { sentence: answer.status === 400 && await answer.text() });
  }

  // Errors are loaded if they determine the color, and for the card: at most every half minute for the present
  const ERRORS_MS = 30000;
  let errorsOf = null, errorsAt = 0;
  const needsErrors = () => by.value === "error" || (!card.hidden && (errorsOf !== address(root.dataset.errors) || (moment === null && performance.now() - errorsAt > ERRORS_MS)));

  async function frame() {
    const url = address(root.dataset.url);
    const asked = [needsErrors() && address(root.dataset.errors), !kept.has(url) && url].filter(Boolean);
    const found = new Map(await Promise.all(asked.map(async (one) => [one, kept.get(one) ?? await read(one)])));
    if (moment !== null) for (const [one, answer] of found) keep(one, answer);
    return { data: found.get(url) ?? kept.get(url), told: found.get(address(root.dataset.errors)) };
  }

  function keep(url, answer) {
    kept.set(url, answer);
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  }

  // The present is limited to one request per PAUSE_MS; a selected moment is requested at once
  async function ask() {
    if (asking || (resting && moment === null)) { again = true; return; }
    clearTimeout(resting);
    resting = null;
    asking = true;
    again = false;
    const wanted = moment, way = by.value;
    try {
      const found = await frame();
      if (wanted === moment) show(found);
    } catch (error) {
      // For the present, the header shows that the page is stale, and the next hint retries
      if (wanted !== null && wanted === moment) { stop(); words.textContent = error.sentence || `The map of ${spelled(wanted)} could not be loaded.`; }
    }
    asking = false;
    again ||= wanted !== moment || way !== by.value;
    if (wanted === null && moment === null) resting = setTimeout(() => { resting = null; if (again) ask(); }, PAUSE_MS);
    else if (again) ask();
  }

  function show(found) {
    data = found.data;
    if (found.told) {
      errors = new Map(found.told.errors.map(([node, gpu, at, text]) => [`${node} ${gpu}`, [at, text]]));
      [errorsOf, errorsAt] = [address(root.dataset.errors), performance.now()];
    } else if (errorsOf !== address(root.dataset.errors)) errors = null;
    draw();
    canvas.dataset.at = moment ?? "now";
    if (cells[chosen]) words.textContent = say(cells[chosen]);
    if (cells[chosen] && !card.hidden) describe();
  }

  // --- the selected moment; null is the present

  const slider = document.getElementById("map-at"), moments = document.getElementById("map-moment");
  const step = document.getElementById("map-step"), days = document.getElementById("map-days");
  const backToNow = document.getElementById("map-now"), player = document.getElementById("map-play");
  const GRAIN_S = 300;        // resolution of the stored telemetry
  const FRAME_MS = 700;       // minimum duration of a frame of a replay
  const DAY_S = 86400;
  const REACH_S = 30 * DAY_S - GRAIN_S;  // older data is deleted while the page is open
  const skew = Date.now() / 1000 - Number(root.dataset.now);
  const newest = () => Math.floor((Date.now() / 1000 - skew) / GRAIN_S) * GRAIN_S;
  const spelled = (seconds) => written(seconds).replace("T", " ").replace(/:\d\dZ$/, " UTC");
  const spokenDay = new Intl.DateTimeFormat("en", { weekday: "short", timeZone: "UTC" });
  const spokenDate = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
  let moment = null, playing = null;

  function limits() {
    const end = newest();
    slider.max = end;
    const begins = Math.max(Math.ceil(Number(root.dataset.begins) / GRAIN_S) * GRAIN_S, end - REACH_S);
    slider.min = Math.min(begins, end - GRAIN_S);  // the present is at the right, also without any history
    slider.value = moment ?? end;
    slider.disabled = player.disabled = begins >= end;  // a cluster that was just added has only the present
    marks(Number(slider.min), end);
    placeEvents();
  }

  // --- events beside the time slider: one tab stop, arrow keys move, Enter shows the map of that moment

  const KINDS = { incident: ["▲", "bad", "incident"], outage: ["▼", "warn", "node down"], drain: ["■", "drain", "drain"], maintenance: ["▬", "quiet", "maintenance"] };
  const WORST_FIRST = Object.keys(KINDS);
  const EVENTS_MS = 300000;
  const BUTTON_PX = 24;      // events that are closer share a button, so that a finger hits the right one
  const LISTED = 4;          // events that the text of a button names
  const bar = document.getElementById("map-events");
  let events = [];

  function placeEvents() {
    const begin = Number(slider.min), end = Number(slider.max), width = bar.clientWidth;
    const share = (at) => Math.max(0, Math.min(1, (at - begin) / (end - begin)));
    const focused = bar.contains(document.activeElement) ? document.activeElement.dataset.at : null;
    const past = events.filter(([at]) => at <= end);
    const spans = past.filter(([, until]) => until).map(([at, until, kind]) => {
      const span = document.createElement("i");
      span.className = KINDS[kind][1];
      span.style.left = `${100 * share(at)}%`;
      span.style.width = `${Math.max(0.3, 100 * (share(until) - share(at)))}%`;
      return span;
    });
    const groups = [];
    for (const event of past) {
      const x = share(event[0]) * width;
      if (groups.length && x - groups.at(-1).x < BUTTON_PX) groups.at(-1).events.push(event);
      else groups.push({ x, events: [event] });
    }
    const buttons = groups.map((group) => eventButton(group.events, share(group.events[0][0])));
    bar.replaceChildren(...spans, ...buttons);
    const last = buttons.find((button) => button.dataset.at === focused) ?? buttons.at(-1);
    if (last) last.tabIndex = 0;
    if (focused && last) last.focus();
    bar.dataset.count = buttons.length;
  }

  function eventButton(group, share) {
    const worst = WORST_FIRST.find((kind) => group.some((event) => event[2] === kind));
    const [icon, tone] = KINDS[worst];
    const button = document.createElement("button");
    button.type = "button";
    button.className = tone;
    button.textContent = group.length > 1 ? `${icon}${group.length}` : icon;
    button.tabIndex = -1;
    button.dataset.at = group[0][0];
    button.dataset.all = group.map(([at]) => at).join(" ");
    const more = group.length > LISTED ? `; and ${group.length - LISTED} more` : "";
    button.title = group.slice(0, LISTED).map(eventText).join("; ") + more;
    button.setAttribute("aria-label", button.title);
    button.style.left = `${100 * share}%`;
    return button;
  }

  const eventText = ([at, until, kind, count, text]) =>
    `${count > 1 ? `${count} × ` : ""}${KINDS[kind][2]}: ${text}, ${spelled(at)}${until ? ` to ${spelled(until)}` : ""}`;

  async function askEvents() {
    try {
      events = (await read(root.dataset.events)).events;
      placeEvents();
    } catch { /* the map works without them; the next request may succeed */ }
  }

  const STEPS = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
  bar.addEventListener("keydown", (event) => {
    const all = [...bar.querySelectorAll("button")], from = all.indexOf(document.activeElement), by_ = STEPS[event.key];
    if (from < 0 || !by_) return;
    event.preventDefault();
    const next = all[Math.max(0, Math.min(all.length - 1, from + by_))];
    all[from].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  bar.addEventListener("focusin", (event) => { words.textContent = event.target.title; });
  // The first moment at which the map shows the effect of the event; again, and the next event of the button follows
  const effectOf = (at) => Math.ceil((Number(at) + 1) / GRAIN_S) * GRAIN_S;
  bar.addEventListener("click", (event) => {
    const all = event.target.closest("button")?.dataset.all.split(" ").map(effectOf);
    if (all) { stop(); go(all.find((at) => moment !== null && moment >= all[0] && at > moment) ?? all[0]); }
  });
  new ResizeObserver(placeEvents).observe(bar);

  function marks(begin, end) {
    const found = [];
    for (let at = Math.ceil(begin / DAY_S) * DAY_S; at <= end; at += DAY_S) {
      const mark = document.createElement("i");
      mark.style.left = `${100 * (at - begin) / (end - begin)}%`;
      const day = new Date(at * 1000);
      if (day.getUTCDay() === 1) mark.dataset.text = spokenDate.format(day);
      found.push(mark);
    }
    days.replaceChildren(...found);
  }

  // Anything later than the newest complete step is the present
  function go(seconds) {
    const end = newest();
    const before = moment;
    moment = slider.disabled || seconds === null || seconds >= end ? null : Math.max(Number(slider.min), Math.round(seconds / GRAIN_S) * GRAIN_S);
    if (moment === null) limits(); else slider.value = moment;
    tell();
    if (before !== moment) { ask(); table(); }
  }

  function tell() {
    const text = moment === null ? "now" : spelled(moment);
    moments.textContent = moment === null ? text : `${spokenDay.format(moment * 1000)} ${text}`;
    slider.setAttribute("aria-valuetext", text);
    backToNow.disabled = moment === null;
    clearTimeout(naming);
    naming = setTimeout(name, 300);
  }

  // Runs when the slider rests: browsers reject pages that change their URL too often
  let naming = null;
  function name() {
    const place = new URL(location.href);
    if (moment === null) place.searchParams.delete("at"); else place.searchParams.set("at", written(moment));
    history.replaceState(history.state, "", place.href.replaceAll("%3A", ":"));
  }

  // The table follows when the slider rests
  let later = null;
  function table() {
    clearTimeout(later);
    later = setTimeout(() => {
      const rows = document.getElementById("racks"), place = new URL(rows.getAttribute("hx-get"), location.href);
      if (moment === null) place.searchParams.delete("at"); else place.searchParams.set("at", written(moment));
      rows.setAttribute("hx-get", place.pathname + place.search);
      rows.dispatchEvent(new CustomEvent("moment"));
    }, 900);
  }

  const by_steps = (count) => go((moment ?? newest()) + count * Number(step.value));

  function play() {
    if (moment === null) go(newest() - 24 * Number(step.value));
    playing = setTimeout(next, FRAME_MS);
    shown();
  }

  function next() {
    if (document.hidden || asking) { playing = setTimeout(next, 100); return; }
    by_steps(1);
    if (moment === null) stop(); else playing = setTimeout(next, FRAME_MS);
  }

  function stop() {
    clearTimeout(playing);
    playing = null;
    shown();
  }

  function shown() {
    player.setAttribute("aria-pressed", String(playing !== null));
    player.querySelector("[data-word]").textContent = playing === null ? "Play" : "Pause";
    player.firstElementChild.textContent = playing === null ? "▶" : "‖";
    words.setAttribute("aria-live", playing === null ? "polite" : "off");
  }

  const MOVES = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 };
  slider.addEventListener("keydown", (event) => {
    const day = { PageUp: 1, PageDown: -1 }[event.key];
    if (!MOVES[event.key] && !day) return;
    event.preventDefault();
    stop();
    if (day) go((moment ?? newest()) + day * DAY_S); else by_steps(MOVES[event.key]);
  });
  slider.addEventListener("input", () => { stop(); go(Number(slider.value)); });
  document.getElementById("map-back").addEventListener("click", () => { stop(); by_steps(-1); });
  document.getElementById("map-on").addEventListener("click", () => { stop(); by_steps(1); });
  player.addEventListener("click", () => { if (playing === null) play(); else stop(); });
  backToNow.addEventListener("click", () => { stop(); go(null); slider.focus(); });

  const hear = (event) => { if (!document.hidden && moment === null && !event?.only) ask(); };
  document.body.addEventListener("queue", hear);
  document.body.addEventListener("nodes", hear);
  setInterval(() => { if (moment === null) limits(); hear(); }, 30000);
  setInterval(() => { if (!document.hidden) askEvents(); }, EVENTS_MS);
  by.addEventListener("change", () => { if (needsErrors() && !errors) ask(); else draw(); });
  new ResizeObserver(() => { if (data && canvas.width !== Math.floor(canvas.clientWidth * (window.devicePixelRatio || 1))) draw(); }).observe(root);
  window.addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new MutationObserver(draw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  if (root.dataset.at) moment = Number(root.dataset.at);
  limits();
  tell();
  ask();
  askEvents();
})();
