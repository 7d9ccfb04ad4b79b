// The page of a View: asks four times a second how the sources do, and shows the latest picture of each.

import { drawLines } from "./charts.js";
import { made, number, showFigures } from "./elements.js";
import { start } from "./events.js";
import { read, watch } from "./server.js";

const SHOWN_S = 60;
const KINDS = { reading: "good", lost: "bad" }; // how the state of a source is coloured
const tiles = new Map(); // by the name of the source

watch(250, document.getElementById("note"), async () => {
  const { now, sources, has_events: hasEvents } = await read("ui/state.json"), names = Object.keys(sources);
  if (hasEvents) start();
  if (names.length !== tiles.size || names.some((name) => !tiles.has(name))) arrange(names);
  for (const name of names) show(tiles.get(name), sources[name], now);
  return names.length === 1 ? "1 source" : `${names.length} sources`;
});

document.addEventListener("keydown", (event) => event.key === "Escape" && enlarge(null));

// Show one source alone, or all of them again.
function enlarge(chosen) {
  for (const tile of tiles.values()) {
    const isLarge = tile === chosen && !tile.article.classList.contains("large");
    tile.article.classList.toggle("large", isLarge);
    tile.picture.ariaExpanded = isLarge;
  }
}

// Make a tile for each name that has none, forget those of others, and put them in order.
function arrange(names) {
  for (const name of tiles.keys()) if (!names.includes(name)) tiles.delete(name);
  for (const name of names) if (!tiles.has(name)) tiles.set(name, madeTile(name));
  for (const name of names) tiles.get(name).title.textContent = shortened(name, names);
  document.getElementById("sources").replaceChildren(...names.map((name) => tiles.get(name).article));
}

// A path without the folders that are not needed to tell it from the other names.
function shortened(name, names) {
  if (name.includes("://")) return name;
  const parts = name.split(/[/\\]/);
  for (let from = parts.length - 1; from > 0; from--) {
    const end = parts.slice(from).join("/");
    if (names.every((other) => other === name || !`/${other.replaceAll("\\", "/")}`.endsWith(`/${end}`))) return end;
  }
  return name;
}

function madeTile(name) {
  const tile = {
    image: made("img", { alt: name, hidden: true }), nothing: made("div", { className: "nothing" }), state: made("span", { className: "badge" }),
    figures: made("dl", { className: "figures" }), chart: made("canvas", { role: "img", ariaLabel: `frames per second of ${name}` }),
    title: made("span", { title: name }), events: made("ol", { className: "events" }), error: made("p", { className: "error" }), rates: [], frame: null,
  };
  tile.picture = made("button", { className: "picture", title: "larger, or smaller again", ariaExpanded: false }, tile.image, tile.nothing);
  tile.picture.addEventListener("click", () => enlarge(tile));
  const title = made("h2", {}, tile.title, tile.state);
  tile.article = made("article", { className: "card source" }, tile.picture, made("div", {}, title, tile.error, tile.figures, tile.events, tile.chart));
  return tile;
}

function show(tile, source, now) {
  const status = source.status ?? {}, state = status.state ?? "";
  tile.image.hidden = !source.has_picture;
  tile.nothing.hidden = source.has_picture;
  tile.nothing.textContent = state === "lost" ? "no picture" : "no picture yet";
  // A picture that is still on its way is waited for: over a slow line the next one would only take its place.
  if (source.has_picture && tile.frame !== source.frame && tile.image.complete) {
    tile.image.src = `ui/picture.jpg?${new URLSearchParams({ source: tile.image.alt, frame: source.frame })}`;
    tile.frame = source.frame;
  }
  tile.state.textContent = status.retry_in_s == null ? state : `${state}, next try in ${Math.ceil(status.retry_in_s)} s`;
  tile.state.className = `badge ${KINDS[state] ?? ""}`;
  const counts = Object.entries(source.counts).flatMap(([line, each]) => Object.entries(each).map(([what, count]) => [`${line} ${what}`, `${count}`]));
  showFigures(tile.figures, [
    ["frames/s", number(source.fps)], ["objects", number(source.objects, 0)], ["frame", `${source.frame ?? "–"}`],
    ["time", seconds(source.timestamp)], ["dropped", number(status.dropped ?? 0, 0)], ["failed", number(status.failed ?? 0, 0)], ...counts,
  ]);
  tile.events.replaceChildren(...source.events.map((one) => made("li", {}, told(one))));
  tile.events.hidden = !source.events.length;
  tile.error.textContent = source.error?.message ?? status.error ?? "";
  tile.error.hidden = !tile.error.textContent;
  tile.rates = [...tile.rates, [now, source.fps]].filter(([at]) => now - at < SHOWN_S);
  drawLines(tile.chart, { now, spanS: SHOWN_S, height: 84, unit: "/s", lines: [{ colour: "blue", points: tile.rates }] });
}

function seconds(value) {
  return value == null ? "–" : `${number(value)} s`;
}

// An event in words: "12.4 s: door in, #5 car".
function told({ timestamp, type, name, direction, track_id: track, class_name: kind, dwell_s: dwell }) {
  const who = [track == null ? "" : `#${track}`, kind ?? ""].filter(Boolean).join(" ");
  const what = [name ?? type ?? "", direction ?? "", dwell == null ? "" : `after ${seconds(dwell)}`].filter(Boolean).join(" ");
  return `${seconds(timestamp)}: ${[what, who].filter(Boolean).join(", ")}`;
}
