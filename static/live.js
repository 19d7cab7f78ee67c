// Keeps a page up to date. The socket carries topic names and sequence numbers, never data. For each topic that changed,
// an event is dispatched on <body>, and the fragments that show it reload:
//
//   <section id="queue" hx-get="/" hx-trigger="queue from:body, every 30s" hx-swap="outerMorph">
//
// A topic has at most one event per second, and the last of a burst is always delivered; htmx' own throttle drops it. A
// fragment that is expensive for the server listens at a tenth of that rate: "queue-slowly from:body".
// A page fetches less than one fragment per second, however many topics change, and each one every few seconds: what it
// must leave out waits its turn. The server answers 304 to a fragment that would look the same (jobs/web/page.py).
// The event's name is that of the topic with "-" for ":" (topic "job:01k3v9q2m7t", event "job-01k3v9q2m7t").
// Everything reloads when messages may have been missed: at every (re)connection, because the page is older than its
// first message; at a gap in the numbers; when the tab becomes visible. `every 30s` works without any of this.
"use strict";
(() => {
  const MERGE_MS = 150;
  const PACE_MS = 1000;
  const SLOW_MS = 10000;
  const FRAGMENT_MS = 4000;  // between two events that fetch the same fragment
  const FETCH_MS = 1250;     // between two fetches of the page, after the first few
  const FETCHES_AT_ONCE = 3;
  const FIRST_WAIT_MS = 500;
  const LONGEST_WAIT_MS = 30000;
  const SIGNED_OUT = 4401;
  const REFUSED = 4400;

  const topics = [...new Set(
    [...document.querySelectorAll("[data-topics]")].flatMap((element) => element.dataset.topics.split(/\s+/)).filter(Boolean),
  )];
  const status = document.getElementById("live");
  const numbers = new Map();
  let socket = null;
  let wait = FIRST_WAIT_MS;
  let signedOut = false;

  // --- topics become events

  class TopicEvent extends Event {
    constructor(name, only = null) {
      super(name);
      this.only = only;  // the fragment whose turn it is, after it had to wait
    }
  }

  function pacer(suffix, pace) {
    const moved = new Set();
    const sentAt = new Map();  // when each topic last became an event
    let timer = null;
    function flush() {
      const now = performance.now();
      const ripe = [...moved].filter((topic) => now - (sentAt.get(topic) ?? -pace) >= pace);
      for (const topic of ripe) {
        moved.delete(topic);
        sentAt.set(topic, now);
        document.body.dispatchEvent(new TopicEvent(topic.replaceAll(":", "-") + suffix));
      }
      timer = moved.size ? setTimeout(flush, MERGE_MS) : null;
    }
    return (names) => {
      for (const name of names) moved.add(name);
      timer ??= setTimeout(flush, MERGE_MS);
    };
  }

  const soon = pacer("", PACE_MS);
  const slowly = pacer("-slowly", SLOW_MS);

  function move(...names) {
    soon(names);
    slowly(names);
  }

  // --- status in the header

  function setStatus(tone, text) {
    if (!status) return;
    const words = status.querySelector("[data-live-text]");
    status.dataset.state = tone;
    if (words.textContent !== text) words.textContent = text;  // screen readers announce every change of a live region
  }

  // Loops that are late make the page's data old, however well the page is connected
  function showConnected() {
    if (document.querySelector("#late[data-late]")) setStatus("late", "late"); else setStatus("live", "live");
  }

  function stale() {
    if (!signedOut && status?.dataset.state !== "stale") {
      setStatus("stale", `stale since ${new Date().toLocaleTimeString([], { hour12: false })}`);
    }
  }

  function endSession() {
    signedOut = true;
    setStatus("out", "signed out");
  }

  // --- the socket

  function onMessage(message) {
    const answer = JSON.parse(message.data);
    if (answer.joined) {
      wait = FIRST_WAIT_MS;
      for (const [topic, number] of Object.entries(answer.joined)) numbers.set(topic, number);
      showConnected();
      move(...topics);
    } else if (answer.topic) {
      const isNext = answer.seq === numbers.get(answer.topic) + 1;
      numbers.set(answer.topic, answer.seq);
      if (isNext) move(answer.topic); else move(...topics);
    }
  }

  function connect() {
    socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/live/`);
    socket.addEventListener("open", () => socket.send(JSON.stringify({ join: topics })));
    socket.addEventListener("message", onMessage);
    socket.addEventListener("close", (event) => {
      socket = null;
      if (event.code === SIGNED_OUT) return endSession();
      stale();
      if (event.code === REFUSED) return undefined;
      // Half of the delay is random, so that a thousand pages do not reconnect at the same moment
      setTimeout(() => { if (!socket && !signedOut) connect(); }, wait / 2 + Math.random() * wait / 2);
      wait = Math.min(wait * 2, LONGEST_WAIT_MS);
      return undefined;
    });
  }

  if (topics.length) connect(); else setStatus("idle", "health");  // the page shows nothing that changes

  document.addEventListener("visibilitychange", () => {
    if (document.hidden || !topics.length || signedOut) return;
    wait = FIRST_WAIT_MS;
    if (socket) move(...topics); else connect();
  });

  // --- fragments: when they are fetched

  const missed = new Map();     // id of a fragment that has to wait: the event that it missed
  const fetchedAt = new Map();  // id of a fragment: when it was fetched last
  let credit = 1, creditAt = performance.now(), release = null;

  const isDue = (id, now) => credit >= 1 && now - (fetchedAt.get(id) ?? -FRAGMENT_MS) >= FRAGMENT_MS;

  function earnCredit(now) {
    credit = Math.min(FETCHES_AT_ONCE, credit + (now - creditAt) / FETCH_MS);
    creditAt = now;
  }

  function spendCredit(id, now) {
    credit -= 1;
    fetchedAt.set(id, now);
    missed.delete(id);
  }

  function releaseMissed() {
    const now = performance.now();
    earnCredit(now);
    for (const [id, name] of missed) {  // the first one waits longest
      const element = document.getElementById(id);
      if (!element) missed.delete(id);
      else if (isDue(id, now)) {
        spendCredit(id, now);
        document.body.dispatchEvent(new TopicEvent(name, element));
      }
    }
    release = missed.size ? setTimeout(releaseMissed, MERGE_MS) : null;
  }

  function mayFetch(element, event) {
    if (signedOut) return false;
    const isTopic = event instanceof TopicEvent;
    if (!isTopic && event?.type !== "every") return true;  // a user's request, or the first of a fragment
    if (document.hidden) return false;  // everything reloads when the tab becomes visible
    if (isTopic && event.only) return event.only === element;
    const now = performance.now();
    earnCredit(now);
    if (isTopic && !isDue(element.id, now)) {
      if (!missed.has(element.id)) missed.set(element.id, event.type);
      release ??= setTimeout(releaseMissed, MERGE_MS);
      return false;
    }
    spendCredit(element.id, now);
    return true;
  }

  // --- fragments: an answer that would change nothing is not sent

  const tags = new Map();  // id of a fragment: the URL and ETag of what it shows
  const isRefresh = ({ request, sourceElement, target }) => request.method === "GET" && target === sourceElement;

  document.addEventListener("htmx:before:request", (event) => {
    const { ctx } = event.detail;
    if (!mayFetch(ctx.sourceElement, ctx.sourceEvent)) return event.preventDefault();
    const known = tags.get(ctx.sourceElement.id);
    if (isRefresh(ctx) && known?.url === ctx.request.action) ctx.request.headers["If-None-Match"] = known.tag;
    return undefined;
  });

  document.addEventListener("htmx:after:swap", (event) => {
    const { ctx } = event.detail;
    if (!ctx.response || ctx.response.status === 304) return;
    const { id } = ctx.target;
    if (id === "late" && ["live", "late"].includes(status?.dataset.state)) showConnected();
    const tag = ctx.response.headers.get("ETag");
    tags.delete(id);
    // An open form keeps its old content, so this fragment is not what the server sent
    const isComplete = !document.getElementById(id)?.querySelector("details[open]");
    if (id && tag && isRefresh(ctx) && isComplete) tags.set(id, { url: ctx.request.action, tag });
  });

  // --- fragments: what a change moves slides to its new place, so that a reader does not lose the line

  const SLIDE_MS = 200;
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const narrow = matchMedia("(max-width: 719px)");  // where cells wrap within their row
  const parts = () => `main > *, main [id]${narrow.matches ? ", main td, main li" : ""}`;

  function nearbyParts() {
    const places = new Map();
    for (const part of document.querySelectorAll(parts())) {
      const place = part.getBoundingClientRect();
      const isNear = place.bottom > -window.innerHeight && place.top < 2 * window.innerHeight;
      if (isNear && place.height) places.set(part, place);
    }
    return places;
  }

  function slideFrom(places) {
    const moves = new Map();  // all places are read before the first one is changed
    for (const [part, { left, top }] of places) {
      if (!part.isConnected) continue;
      const now = part.getBoundingClientRect();
      moves.set(part, [left - now.left, top - now.top]);
    }
    const selector = parts();
    for (const [part, [x, y]] of moves) {
      const [along, down] = moves.get(part.parentElement.closest(selector)) ?? [0, 0];  // it moves along with its parent
      if (Math.abs(x - along) < 1 && Math.abs(y - down) < 1) continue;
      const frames = { transform: [`translate(${x - along}px, ${y - down}px)`, "none"] };
      part.animate(frames, { duration: SLIDE_MS, easing: "ease-out" });
    }
  }

  document.addEventListener("htmx:before:swap", () => {
    if (still.matches || document.hidden) return;
    const places = nearbyParts();
    // Its callback runs after the swap and before the next paint; the event `htmx:after:swap` comes later
    const observer = new MutationObserver(() => {
      observer.disconnect();
      slideFrom(places);
    });
    observer.observe(document.getElementById("main"), { childList: true, subtree: true });
  });

  document.addEventListener("htmx:before:response", (event) => {
    const response = event.detail.ctx.response.raw;
    if (response.redirected && new URL(response.url).pathname.startsWith("/login/")) {
      event.preventDefault();  // the login form is not a fragment of this page
      endSession();
    }
  });

  document.addEventListener("htmx:error", stale);

  // --- times continue between responses, by the server's clock; all change at the same moment

  // The server read its clock right after the request arrived; this script runs up to seconds later
  const asked = (performance.timeOrigin + (performance.getEntriesByType("navigation")[0]?.requestStart ?? 0)) / 1000;
  const skew = asked - Number(document.body.dataset.now || asked);
  const two = (number) => String(number).padStart(2, "0");

  function clock(seconds) {
    const total = Math.max(0, seconds);
    const days = Math.floor(total / 86400);
    const text = [total % 86400 / 3600, total % 3600 / 60, total % 60].map((part) => two(Math.floor(part))).join(":");
    return days ? `${days}-${text}` : text;
  }

  // The same rules as the template filter `age`
  function age(seconds) {
    const total = Math.max(0, seconds);
    const [days, hours, minutes] = [total / 86400, total / 3600 % 24, total / 60 % 60].map(Math.floor);
    if (days) return hours && days < 10 ? `${days}d${hours}h` : `${days}d`;
    if (hours) return minutes ? `${hours}h${minutes}m` : `${hours}h`;
    return minutes ? `${minutes}m` : `${total}s`;
  }

  const FORMS = {  // attribute with the moment in seconds: text
    started: (moment, now) => clock(now - moment),
    since: (moment, now) => age(now - moment),
    until: (moment, now) => age(moment - now),
    expected: (moment, now) => (moment > now ? `in ${age(moment - now)}` : "now"),
    ago: (moment, now) => (moment <= now ? `${age(now - moment)} ago` : `in ${age(moment - now)}`),
  };
  const TICKING = Object.keys(FORMS).map((form) => `time[data-${form}]`).join(",");

  // A deadline that passes ends something on the server too: its fragment reloads once
  const passed = new WeakSet();

  function reloadPassed(element) {
    if (passed.has(element)) return;
    passed.add(element);
    move(...(element.closest("[data-topics]")?.dataset.topics.split(/\s+/) ?? []));
  }

  function tick() {
    if (document.hidden) return;
    const now = Math.floor(Date.now() / 1000 - skew);
    for (const element of document.querySelectorAll(TICKING)) {
      for (const [form, written] of Object.entries(FORMS)) {
        if (!(form in element.dataset)) continue;
        const text = written(Number(element.dataset[form]), now);
        if (element.textContent !== text) element.textContent = text;
        if (form === "until" && Number(element.dataset.until) < now) reloadPassed(element);
      }
    }
  }

  setInterval(tick, 1000);
  document.addEventListener("htmx:after:swap", tick);  // a cached fragment is older than the page

  // --- forms

  document.addEventListener("change", (event) => {
    if (event.target.matches("form[data-auto] select")) event.target.form.requestSubmit();
  });
  // A slider shows its value
  for (const slider of document.querySelectorAll("input[type=range][data-unit]")) {
    const output = document.createElement("output");
    const show = () => { output.value = slider.value + slider.dataset.unit; };
    output.htmlFor = slider.id;
    slider.after(output);
    slider.addEventListener("input", show);
    show();
  }
  document.addEventListener("submit", (event) => {
    // A second click must not submit a second job; the Back button makes the form usable again
    if (event.target.matches("form[data-once]")) {
      setTimeout(() => event.target.querySelectorAll("button").forEach((button) => { button.disabled = true; }));
    }
    // A URL without empty filters is easier to read and share
    if (event.target.matches("form[data-auto]")) {
      for (const field of event.target.elements) if (field.name && !field.value) field.disabled = true;
    }
  });
  window.addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    document.querySelectorAll("form :disabled:not([data-off])").forEach((field) => { field.disabled = false; });
  });
  // At most one open dialog; Escape closes it
  document.addEventListener("toggle", (event) => {
    if (!event.target.open || !event.target.matches("details.ask")) return;
    document.querySelectorAll("details.ask[open]").forEach((other) => { if (other !== event.target) other.open = false; });
    event.target.querySelector("input[name=why]")?.focus();
  }, true);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    document.querySelectorAll("details.ask[open]").forEach((open) => {
      open.open = false;
      open.querySelector("summary").focus();
    });
  });
})();
