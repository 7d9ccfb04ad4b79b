// Two charts, each drawn anew from what is kept: the latency of the load test, and the batches of each instance.

import { number } from "./server.js";

const SHOWN_S = 60, TIMELINE_S = 4;
const COLOURS = { p50: "#2463b4", p95: "#d9822b", failed: "#b3261e", grid: "#d5dce5", faint: "#667384" };

// A canvas as wide as it is shown, in pixels of the screen; returns its context and its size in pixels of the page.
function prepared(canvas, height) {
  const width = canvas.clientWidth || 640, scale = window.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.font = "11px system-ui, sans-serif";
  return { context, width, height };
}

// Draw the buckets of a load test: lines of p50 and p95 in ms, and requests per second as columns behind them.
export function drawLatency(canvas, buckets, now) {
  const { context, width, height } = prepared(canvas, 170);
  const shown = buckets.filter((one) => now - one.from < SHOWN_S);
  const timed = shown.filter((one) => one.requests > 0);
  const perSecond = new Map();
  for (const one of shown) perSecond.set(Math.floor(one.from), (perSecond.get(Math.floor(one.from)) ?? 0) + one.requests);
  const left = 60, right = width - 50, floor = height - 18, ceiling = 22;
  const mostMs = Math.max(1, ...timed.map((one) => one.p95)) * 1.15, mostRate = Math.max(1, ...perSecond.values()) * 1.15;
  const x = (at) => right - ((now - at) / SHOWN_S) * (right - left), y = (ms) => floor - (ms / mostMs) * (floor - ceiling);
  const column = (right - left) / SHOWN_S;
  context.fillStyle = "#e3e9f1";
  for (const [second, requests] of perSecond) {
    const tall = (requests / mostRate) * (floor - ceiling);
    if (x(second) >= left) context.fillRect(x(second), floor - tall, Math.min(column - 1, right - x(second)), tall);
  }
  context.fillStyle = COLOURS.failed;
  for (const one of shown) if (one.failed && x(one.from) >= left) context.fillRect(x(one.from), floor, 2, 4);
  context.fillStyle = COLOURS.faint;
  context.strokeStyle = COLOURS.grid;
  for (const share of [0, 0.5, 1]) {
    const level = floor - share * (floor - ceiling);
    context.beginPath();
    context.moveTo(left, level);
    context.lineTo(right, level);
    context.stroke();
    context.textAlign = "right";
    context.fillText(`${number(share * mostMs)} ms`, left - 4, level + 4);
    context.textAlign = "left";
    context.fillText(`${number(share * mostRate, 0)}/s`, right + 4, level + 4);
  }
  for (const key of ["p95", "p50"]) {
    context.strokeStyle = COLOURS[key];
    context.lineWidth = 1.6;
    context.beginPath();
    let last = null;
    for (const one of timed) {
      if (x(one.from) < left) continue;
      const gap = last === null || one.from - last > 5;
      context[gap ? "moveTo" : "lineTo"](x(one.from), y(one[key]));
      last = one.from;
    }
    context.stroke();
  }
  context.textAlign = "left";
  const last = timed.at(-1), fresh = last && now - last.from < 10;
  const parts = [
    ["p50", `p50 ${fresh ? number(last.p50) : "–"} ms`], ["p95", `p95 ${fresh ? number(last.p95) : "–"} ms`],
    ["faint", `${fresh ? number(recentRate(timed, now)) : "–"} requests/s, without the network`],
  ];
  let at = left;
  for (const [colour, text] of parts) {
    context.fillStyle = COLOURS[colour];
    context.fillText(text, at, 12);
    at += context.measureText(text).width + 16;
  }
  context.fillStyle = COLOURS.faint;
  context.fillText(`${SHOWN_S} s ago`, left, height - 3);
  context.textAlign = "right";
  context.fillText("now", right, height - 3);
}

function recentRate(buckets, now) {
  const recent = buckets.filter((one) => now - one.from < 10);
  return recent.reduce((sum, one) => sum + one.requests, 0) / Math.max(1, now - recent[0].from);
}

// Draw each batch of the last seconds as a bar in the row of its instance, the darker the fuller; failures are red.
export function drawTimeline(canvas, batches, model, now) {
  const rows = model.nodes.filter((node) => !node.alias_of)
    .flatMap((node) => Array.from({ length: Math.min(node.instances, 8) }, (_, index) => ({ node, index })));
  const { context, width, height } = prepared(canvas, rows.length * 18 + 20);
  const left = Math.min(140, width / 4), scale = (width - left) / TIMELINE_S, place = new Map();
  context.strokeStyle = COLOURS.grid;
  rows.forEach(({ node, index }, row) => {
    place.set(`${node.name} ${index}`, row);
    context.fillStyle = COLOURS.faint;
    context.fillText(index === 0 ? node.name.slice(0, 20) : "", 0, row * 18 + 13);
    context.textAlign = "right";
    context.fillText(String(index), left - 6, row * 18 + 13);
    context.textAlign = "left";
    context.strokeRect(left, row * 18 + 2, width - left, 14);
  });
  for (const [, name, index, size, started, ended, failed] of batches) {
    const row = place.get(`${name} ${index}`);
    const from = Math.max(left, width - (now - started) * scale), to = width - (now - ended) * scale;
    if (row === undefined || to < left) continue;
    const most = rows[row].node.most ?? 8, share = Math.min(1, size / most), wide = Math.max(1, to - from - 0.5);
    context.fillStyle = failed ? COLOURS.failed : `hsl(213 67% ${78 - 48 * share}%)`;
    context.fillRect(from, row * 18 + 3, wide, 12);
    const text = String(size);
    if (wide > context.measureText(text).width + 4) {
      context.fillStyle = share > 0.5 || failed ? "#fff" : "#1d2530";
      context.fillText(text, from + wide / 2 - context.measureText(text).width / 2, row * 18 + 13);
    }
  }
  context.fillStyle = COLOURS.faint;
  context.fillText(`${TIMELINE_S} s ago`, left, height - 4);
  context.textAlign = "right";
  context.fillText("now; the number in a bar is the size of its batch", width, height - 4);
  context.textAlign = "left";
}

export const KEPT_S = { buckets: SHOWN_S, batches: TIMELINE_S + 1 };
