// Two charts of a model: the latency of its load test, and the batches of each instance.

import { captions, colour, drawLines, prepared } from "./charts.js";
import { number, showFigures } from "./elements.js";

const LOAD_S = 60, TIMELINE_S = 4, ROW = 18;

// Show the buckets of a load test: p50 and p95 in ms as lines, and requests per second as columns behind them.
export function showLoad(canvas, list, buckets, now) {
  const timed = buckets.filter((one) => one.requests > 0), perSecond = new Map();
  for (const one of timed) perSecond.set(Math.floor(one.from), (perSecond.get(Math.floor(one.from)) ?? 0) + one.requests);
  const last = timed.at(-1), fresh = last && now - last.from < 10 ? last : {};
  const failed = buckets.reduce((sum, one) => sum + one.failed, 0);
  const rate = fresh === last ? `${number(recentRate(timed, now))}/s` : "–";
  const ms = (value) => (value === undefined ? "–" : `${number(value)} ms`);
  showFigures(list, [["p50", ms(fresh.p50), "blue"], ["p95", ms(fresh.p95), "orange"], ["requests", rate], ["failed", number(failed, 0)]]);
  drawLines(canvas, {
    now, spanS: LOAD_S, height: 170, unit: " ms", columnUnit: "/s",
    lines: [["p95", "orange"], ["p50", "blue"]].map(([key, name]) => ({ colour: name, points: timed.map((one) => [one.from, one[key]]) })),
    columns: [...perSecond],
    marks: buckets.filter((one) => one.failed).map((one) => one.from),
  });
}

function recentRate(buckets, now) {
  const recent = buckets.filter((one) => now - one.from < 10);
  return recent.reduce((sum, one) => sum + one.requests, 0) / Math.max(1, now - recent[0].from);
}

// Draw each batch of the last seconds as a bar in the row of its instance, the stronger the fuller; failures are red. Those that run
// ([node, instance, begin]) are outlined: how many requests they have is not known yet.
export function drawTimeline(canvas, batches, running, model, now) {
  const rows = model.nodes.filter((node) => !node.alias_of)
    .flatMap((node) => Array.from({ length: Math.min(node.instances, 8) }, (_, index) => ({ node, index })));
  const height = rows.length * ROW + 20, { context, width } = prepared(canvas, height);
  const left = Math.min(140, width / 4), scale = (width - left) / TIMELINE_S, place = new Map();
  context.strokeStyle = colour("line");
  context.fillStyle = colour("faint");
  rows.forEach(({ node, index }, row) => {
    place.set(`${node.name} ${index}`, row);
    context.textAlign = "left";
    if (index === 0) context.fillText(node.name.slice(0, 20), 0, row * ROW + 13, left - 22);
    context.textAlign = "right";
    context.fillText(String(index), left - 6, row * ROW + 13);
    context.strokeRect(left + 0.5, row * ROW + 2.5, width - left - 1, 13);
  });
  context.textAlign = "center";
  for (const [, name, index, size, started, ended, failed] of batches) {
    const row = place.get(`${name} ${index}`);
    const from = Math.max(left, width - (now - started) * scale), to = width - (now - ended) * scale;
    if (row === undefined || to < left) continue;
    const share = Math.min(1, size / (rows[row].node.most ?? 8)), wide = Math.max(1, to - from - 0.5);
    context.globalAlpha = failed ? 1 : 0.3 + 0.7 * share;
    context.fillStyle = colour(failed ? "red" : "blue");
    context.fillRect(from, row * ROW + 3, wide, 12);
    context.globalAlpha = 1;
    if (wide > context.measureText(size).width + 4) {
      context.fillStyle = colour(share > 0.5 || failed ? "on-blue" : "ink");
      context.fillText(size, from + wide / 2, row * ROW + 13);
    }
  }
  for (const [name, index, since] of running) {
    const row = place.get(`${name} ${index}`), from = Math.max(left, width - (now - since) * scale);
    if (row === undefined) continue;
    context.fillStyle = colour("pale");
    context.fillRect(from, row * ROW + 3, width - from, 12);
    context.strokeStyle = colour("blue");
    context.strokeRect(from + 0.5, row * ROW + 2.5, width - from - 1, 13);
    context.fillStyle = colour("ink");
    if (width - from > context.measureText("running").width + 4) context.fillText("running", (from + width) / 2, row * ROW + 13);
  }
  captions(context, left, width, height, TIMELINE_S);
}

export const KEPT_S = { buckets: LOAD_S, batches: TIMELINE_S + 1 };
