// The page of a View: asks four times a second how the sources do, and shows the latest picture of each.

import { drawLines } from "./charts.js";
import { made, number, showFigures } from "./elements.js";
import { read, watch } from "./server.js";

const SHOWN_S = 60;
const KINDS = { reading: "good", lost: "bad" }; // how the state of a source is coloured
const tiles = new Map(); // by the name of the source

watch(250, document.getElementById("note"), async () => {
  const { now, sources } = await read("ui/state.json"), names = Object.keys(sources);
  if (names.length !== tiles.size || names.some((name) => !tiles.has(name))) arrange(names);
  for (const name of names) show(tiles.get(name), name, sources[name], now);
  return names.length === 1 ? "1 source" : `${names.length} sources`;
});

// Make a tile for each name that has none, forget those of others, and put them in order.
function arrange(names) {
  for (const name of tiles.keys()) if (!names.includes(name)) tiles.delete(name);
  for (const name of names) if (!tiles.has(name)) tiles.set(name, madeTile(name));
  document.getElementById("sources").replaceChildren(...names.map((name) => tiles.get(name).article));
}

function madeTile(name) {
  const tile = {
    image: made("img", { alt: name, hidden: true }), nothing: made("div", { className: "nothing" }), state: made("span", { className: "badge" }),
    figures: made("dl", { className: "figures" }), chart: made("canvas", { role: "img", ariaLabel: `frames per second of ${name}` }),
    error: made("p", { className: "error" }), rates: [], frame: null,
  };
  const title = made("h2", {}, made("span", { textContent: name }), tile.state);
  tile.article = made("article", { className: "card source" }, tile.image, tile.nothing, made("div", {}, title, tile.error, tile.figures, tile.chart));
  return tile;
}

function show(tile, name, source, now) {
  const status = source.status ?? {}, state = status.state ?? "";
  tile.image.hidden = !source.has_picture;
  tile.nothing.hidden = source.has_picture;
  tile.nothing.textContent = state === "lost" ? "no picture" : "no picture yet";
  // A picture that is still on its way is waited for: over a slow line the next one would only take its place.
  if (source.has_picture && tile.frame !== source.frame && tile.image.complete) {
    tile.image.src = `ui/picture.jpg?${new URLSearchParams({ source: name, frame: source.frame })}`;
    tile.frame = source.frame;
  }
  tile.state.textContent = status.retry_in_s == null ? state : `${state}, next try in ${Math.ceil(status.retry_in_s)} s`;
  tile.state.className = `badge ${KINDS[state] ?? ""}`;
  const counts = Object.entries(source.counts).flatMap(([line, each]) => Object.entries(each).map(([what, count]) => [`${line} ${what}`, `${count}`]));
  showFigures(tile.figures, [
    ["frames/s", number(source.fps)], ["objects", number(source.objects, 0)], ["frame", `${source.frame ?? "–"}`],
    ["time", source.timestamp == null ? "–" : `${number(source.timestamp)} s`], ["dropped", number(status.dropped ?? 0, 0)], ["failed", number(status.failed ?? 0, 0)], ...counts,
  ]);
  tile.error.textContent = source.error?.message ?? status.error ?? "";
  tile.error.hidden = !tile.error.textContent;
  tile.rates = [...tile.rates, [now, source.fps]].filter(([at]) => now - at < SHOWN_S);
  drawLines(tile.chart, { now, spanS: SHOWN_S, height: 84, unit: "/s", lines: [{ colour: "blue", points: tile.rates }] });
}
