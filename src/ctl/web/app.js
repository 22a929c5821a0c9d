// The page of gpuslice web. The server sends everything once, then what is new each second. All texts are set as text,
// never as markup: names come from tenants.
"use strict";

const COLOURS = ["#4e9bd6", "#e8a33d", "#4fb286", "#d46a9f", "#9d7fd1", "#c9c04a", "#e06c5b", "#57b8c4", "#a88b6a", "#8f9bb3"];
const TEN_MINUTES = 600000;
const TWO_MINUTES = 120000;
const EVENTS_MAX = 200;
const BAD_EVENTS = ["slice-refused", "memory-refused", "overrun", "gpu-failed", "over-cap", "frozen", "killed", "not-moved"];
const SVG = "http://www.w3.org/2000/svg";

const series = new Map(); // number -> {container, name, gpu, samples: [[end, length, got, due, waited, idle, memory]]}
let events = [];
let now = 0;
let open = null; // container and GPU of the slice that is explained

function node(name, text, className) {
  const it = document.createElement(name);
  if (text !== undefined) it.textContent = text;
  if (className) it.className = className;
  return it;
}

function shape(name, attributes) {
  const it = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) it.setAttribute(key, value);
  return it;
}

function percent(part) { return part === null ? "-" : (100 * part).toFixed(part < 0.095 && part >= 0.0005 ? 1 : 0) + " %"; }

// As the commands print it.
function duration(ns) {
  if (ns < 1e9) return Math.floor(ns / 1e6) + " ms";
  if (ns < 60e9) return (ns / 1e9).toFixed(1) + " s";
  return ns < 3600e9 ? Math.floor(ns / 60e9) + " min" : Math.floor(ns / 3600e9) + " h";
}

function counted(number, what, more = "s") { return `${number} ${what}${number === 1 ? "" : more}`; }

// As the commands print it, so that a size can be typed and is the same text in a reason, a table and an event.
function size(bytes) {
  const GIB = 2 ** 30;
  if (bytes >= GIB && bytes % GIB === 0) return bytes / GIB + "GiB";
  // rounded down, and in whole MiB: sizes of a line add up, and what is left is never shown as what was needed
  for (const [unit, name] of [[2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (bytes >= unit) return (bytes >= 10 * unit ? Math.floor(bytes / unit) : Math.floor(10 * bytes / unit) / 10) + name;
  }
  return bytes + "B";
}

function takeIn(news) {
  if (news.whole) { series.clear(); events = []; }
  now = news.unix_ms;
  for (const it of news.series) {
    const known = series.get(it.number);
    series.set(it.number, Object.assign({ samples: [] }, known, it));
  }
  for (const [number, ...sample] of news.samples) {
    const it = series.get(number);
    const last = it && it.samples[it.samples.length - 1];
    if (it && (!last || last[0] < sample[0])) it.samples.push(sample);
  }
  for (const [number, it] of series) {
    while (it.samples.length && it.samples[0][0] < now - TEN_MINUTES) it.samples.shift();
    if (!it.samples.length && !news.slices.some((row) => row.container === it.container)) series.delete(number);
  }
  const last = events.length ? events[events.length - 1].sequence : 0;
  events = events.concat(news.events.filter((it) => it.sequence > last)).slice(-EVENTS_MAX);
}

// The slices of a GPU that have samples, each with a colour that stays.
function tracks(gpu) {
  const all = [...series.values()].filter((it) => it.gpu === gpu && it.samples.length);
  all.sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0));
  return all.map((it, at) => Object.assign({ colour: COLOURS[at % COLOURS.length] }, it));
}

function stack(gpu) {
  const svg = shape("svg", { viewBox: "0 0 600 120", preserveAspectRatio: "none", role: "img" });
  const title = shape("title", {});
  title.textContent = "part of the GPU's time that each slice got, last 10 minutes";
  svg.append(title);
  for (const y of [0.5, 30, 60, 90, 119.5]) svg.append(shape("line", { x1: 0, x2: 600, y1: y, y2: y, stroke: "#2b313a" }));
  const below = new Map();
  for (const track of tracks(gpu)) {
    let d = "";
    for (const [end, length, got] of track.samples) {
      const x = 600 * (1 - (now - end) / TEN_MINUTES);
      const width = 600 * length / TEN_MINUTES;
      const from = below.get(end) || 0;
      below.set(end, from + got);
      const top = Math.max(0, 120 * (1 - from - got));
      // a little wider than its second, so that no gap shows between two
      d += `M${(x - width - 0.15).toFixed(2)} ${(120 * (1 - from)).toFixed(2)}V${top.toFixed(2)}H${x.toFixed(2)}V${(120 * (1 - from)).toFixed(2)}Z`;
    }
    svg.append(shape("path", { d, fill: track.colour }));
  }
  return svg;
}

function gpuCard(gpu) {
  const card = node("article", undefined, "gpu");
  card.append(node("h3", `GPU ${gpu.index}  ${gpu.product || ""}${gpu.simulated ? ` (simulated, ${gpu.profile})` : ""}`));
  const facts = [
    `policy ${gpu.policy}`, `busy ${percent(gpu.busy)}`, `memory ${size(gpu.memory_used)} used, ${size(gpu.memory_promised)} promised of ${size(gpu.memory_total)}`,
    ...(gpu.health === "healthy" ? [] : [`health: ${gpu.health}`]),
    ...(gpu.memory_suspended > 0 ? [`${size(gpu.memory_suspended)} suspended`] : []),
  ];
  card.append(node("p", facts.join("  ·  ")));
  const bar = node("div", undefined, "bar");
  const used = node("i");
  used.style.width = 100 * gpu.memory_used / gpu.memory_total + "%";
  const promised = node("i", undefined, "promised");
  promised.style.width = 100 * Math.max(0, gpu.memory_promised - gpu.memory_used) / gpu.memory_total + "%";
  bar.append(used, promised);
  card.append(bar, stack(gpu.uuid));
  const axis = node("div", undefined, "axis");
  axis.append(node("span", "-10 min"), node("span", "GPU time by slice"), node("span", "now"));
  card.append(axis);
  const legend = node("div", undefined, "legend");
  for (const track of tracks(gpu.uuid)) {
    const entry = node("span");
    const colour = node("b");
    colour.style.background = track.colour;
    entry.append(colour, node("em", track.name));
    legend.append(entry);
  }
  card.append(legend);
  return card;
}

function spark(row) {
  const svg = shape("svg", { viewBox: "0 0 120 22", preserveAspectRatio: "none" });
  const mine = [...series.values()].filter((it) => it.container === row.container && it.gpu === row.gpu).pop();
  const x = (end) => 120 * (1 - (now - end) / TWO_MINUTES);
  const recent = mine ? mine.samples.filter((it) => it[0] > now - TWO_MINUTES) : [];
  const line = (at) => recent.map((it) => `${x(it[0]).toFixed(1)},${(21 - 20 * Math.min(1, it[at])).toFixed(1)}`).join(" ");
  if (recent.length > 1) {
    svg.append(shape("polyline", { points: line(3), fill: "none", stroke: "#8b95a1", "stroke-dasharray": "3 3", "vector-effect": "non-scaling-stroke" }));
    svg.append(shape("polyline", { points: line(2), fill: "none", stroke: "#4e9bd6", "stroke-width": 1.5, "vector-effect": "non-scaling-stroke" }));
  }
  return svg;
}

function key(row) { return row.container + " " + row.gpu; }

function sliceRow(row) {
  const line = node("tr", undefined, row.holds ? "slice holds" : "slice");
  line.tabIndex = 0;
  line.dataset.key = key(row);
  const toggle = () => { open = open === key(row) ? null : key(row); drawSlices(rows); };
  line.addEventListener("click", toggle);
  line.addEventListener("keydown", (event) => { if (event.key === "Enter") toggle(); });
  const name = node("td", undefined, "name");
  name.append(node("em", row.name));
  name.title = row.pod ? `${row.pod.namespace}/${row.pod.name}/${row.pod.container}` : row.container;
  const memory = node("td");
  const bar = node("div", undefined, "bar");
  const held = node("i");
  // with a memory limit the bar is as long as that, and what is borrowed has a colour of its own
  const most = Math.max(1, row.memory_cap, row.memory_limit);
  const all = row.memory_used + row.memory_untracked;
  held.style.width = 100 * Math.min(all, row.memory_cap) / most + "%";
  const borrowed = node("i", undefined, "borrowed");
  borrowed.style.width = 100 * Math.min(most, Math.max(0, all - row.memory_cap)) / most + "%";
  bar.append(held, borrowed);
  const limit = row.memory_limit > row.memory_cap ? `, limit ${size(row.memory_limit)}` : "";
  // in a text of its own: the table fits a narrow page
  memory.title = row.memory_untracked > 0 ? `${size(row.memory_untracked)} untracked besides` : "";
  memory.append(bar, node("small", `${size(row.memory_used)} of ${size(row.memory_cap)}${limit}`));
  const history = node("td");
  history.append(spark(row));
  line.append(name, node("td", row.index), node("td", row.class), memory);
  for (const part of [row.due, row.got, row.wait, row.idle]) line.append(node("td", percent(part), "figure"));
  line.append(history, node("td", row.why, row.reason));
  return line;
}

function detailRow(row) {
  const line = node("tr", undefined, "detail");
  const cell = node("td");
  cell.colSpan = 10;
  const say = (what, text) => {
    const it = node("p");
    it.append(node("span", what), node("em", text));
    cell.append(it);
  };
  say("why", row.sentence);
  if (row.try) {
    const it = node("p");
    it.append(node("span", "try"), row.try.startsWith("gpuslice ") ? node("code", row.try) : node("em", row.try));
    cell.append(it);
  }
  for (const wait of row.waits) {
    say("behind", `${wait.behind}: ${duration(wait.total_ns)} in all, ${duration(wait.longest_ns)} at most (${wait.cause})`);
  }
  const rules = [`weight ${row.weight ?? "none"}`, `share ${row.share ?? "none"}`, `limit ${row.share_limit ?? "none"}`];
  say("rules", rules.join(", "));
  say("so far", `${counted(row.processes, "process", "es")}, ${counted(row.denied, "refused allocation")}, ${counted(row.late_turns, "late turn")}; id ${row.container}`);
  for (const note of row.notes) say("note", note);
  line.append(cell);
  return line;
}

let rows = [];

function drawSlices(all) {
  rows = all;
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.key : undefined;
  const lines = all.flatMap((row) => (open === key(row) ? [sliceRow(row), detailRow(row)] : [sliceRow(row)]));
  document.getElementById("slices").replaceChildren(...lines);
  document.getElementById("empty").hidden = all.length > 0;
  for (const line of lines) if (focused && line.dataset.key === focused) line.focus({ preventScroll: true });
}

function eventText(it) {
  const parts = [];
  if (it.text) parts.push(it.text);
  const change = (what, was, is) => `${what} ${was === null ? "none" : size(was)} -> ${is === null ? "none" : size(is)}`;
  if (it.slices !== undefined) parts.push(`${counted(it.slices, "slice")} restored`);
  if (it.gpus !== undefined) parts.push(counted(it.gpus, "GPU"));
  if (it.xid) parts.push(`Xid ${it.xid}`);
  if (it.need !== undefined) parts.push(`needed ${size(it.need)}, ${size(it.left)} left`);
  if (it.after_ns !== undefined) parts.push(`${(it.after_ns / 1e6).toFixed(0)} ms after its turn`);
  if (it.held !== undefined) parts.push(`has ${size(it.held)} on the GPU, above the ${size(it.cap)} that it may have`);
  else if (it.cap !== undefined) parts.push(change("cap", it.was, it.cap));
  if (it.limit !== undefined) parts.push(change("limit", it.was, it.limit));
  const moved = { "memory-wanted": "wanted back", suspended: "moved to the host", resumed: "moved back" };
  if (it.bytes !== undefined) parts.push(`${size(it.bytes)} ${moved[it.event] || ""}`);
  if (it.count > 1) parts.push(`and ${it.count - 1} like it before`);
  return parts.join(", ");
}

function drawEvents() {
  const lines = events.slice().reverse().map((it) => {
    const line = node("li", undefined, BAD_EVENTS.includes(it.event) ? "bad" : undefined);
    const time = node("time", new Date(it.unix_ns / 1e6).toLocaleTimeString([], { hour12: false }));
    time.title = it.time;
    const text = node("span", eventText(it));
    text.title = text.textContent;
    line.append(time, node("span", it.event), node("span", it.name || it.container || "-"), text);
    return line;
  });
  document.getElementById("events").replaceChildren(...lines);
}

function say(text, isBad) {
  const state = document.getElementById("state");
  state.textContent = text;
  state.className = isBad ? "bad" : "";
}

let refused = null; // why this page has no figures, if the server has said it
const stream = new EventSource("stream");
stream.onmessage = (message) => {
  const news = JSON.parse(message.data);
  if (!news) return;
  refused = news.refused || null;
  if (refused) return say(refused, true);
  takeIn(news);
  say(news.error || `live, ${new Date(now).toLocaleTimeString([], { hour12: false })}`, Boolean(news.error));
  if (!news.error) {
    document.getElementById("gpus").replaceChildren(...news.gpus.map(gpuCard));
    drawSlices(news.slices);
  }
  drawEvents();
  document.body.dataset.ready = "yes";
};
stream.onerror = () => say(refused || "the server is gone; waiting for it", true);
