// Charts on a canvas, each drawn anew from what is kept, in the colours of style.css.

import { number } from "./elements.js";

const SHARES = [0, 0.5, 1]; // of an axis, that are labelled

// The colour of a name, as "blue", that style.css has for light or dark.
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// A canvas as wide as it is shown, in pixels of the screen; returns its context, and its size in pixels of the page.
export function prepared(canvas, height) {
  const width = canvas.clientWidth || 640, scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.font = "11px system-ui, sans-serif";
  return { context, width, height };
}

// The least number of the form 1, 2, 4 or 5 times a power of ten that is no less.
function roundedUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].map((one) => one * power).find((one) => one >= value * 0.999);
}

// Draw what happened in the last `spanS` seconds before `now`:
//   lines: [{ colour, points: [[at, value], ...] }], broken where there is no point for `gapS` seconds; axis on the left, in `unit`
//   columns: [[at, value], ...], each a second wide, behind the lines; axis on the right, in `columnUnit`
//   marks: [at, ...], red below the axis
export function drawLines(canvas, { now, spanS, height, lines, unit, gapS = 5, columns = null, columnUnit = "", marks = [] }) {
  const { context, width } = prepared(canvas, height);
  const from = now - spanS, floor = height - 18, ceiling = 8;
  const shown = lines.map((line) => ({ ...line, points: line.points.filter(([at]) => at >= from) }));
  const most = roundedUp(Math.max(1, ...shown.flatMap((line) => line.points.map(([, value]) => value))));
  const seen = (columns ?? []).filter(([at]) => at >= from), mostColumn = roundedUp(Math.max(1, ...seen.map(([, value]) => value)));
  const label = (share, all, name) => `${number(share * all, (share * all) % 1 ? 1 : 0)}${name}`;
  const room = (all, name) => Math.max(...SHARES.map((share) => context.measureText(label(share, all, name)).width)) + 8;
  const left = room(most, unit), right = width - (columns ? room(mostColumn, columnUnit) : 4);
  const x = (at) => left + ((at - from) / spanS) * (right - left), y = (value) => floor - (value / most) * (floor - ceiling);
  context.fillStyle = colour("pale");
  const wide = Math.max(1, (right - left) / spanS - 1);
  for (const [at, value] of seen) {
    const tall = (value / mostColumn) * (floor - ceiling);
    context.fillRect(x(at), floor - tall, Math.min(wide, right - x(at)), tall);
  }
  context.fillStyle = colour("red");
  for (const at of marks) if (at >= from) context.fillRect(x(at), floor, 2, 4);
  context.strokeStyle = colour("line");
  context.fillStyle = colour("faint");
  for (const share of SHARES) {
    const level = floor - share * (floor - ceiling);
    context.beginPath();
    context.moveTo(left, level + 0.5);
    context.lineTo(right, level + 0.5);
    context.stroke();
    context.textAlign = "right";
    context.fillText(label(share, most, unit), left - 5, level + 4);
    context.textAlign = "left";
    if (columns) context.fillText(label(share, mostColumn, columnUnit), right + 5, level + 4);
  }
  for (const line of shown) {
    context.strokeStyle = colour(line.colour);
    context.lineWidth = 1.6;
    context.beginPath();
    let last = -Infinity;
    for (const [at, value] of line.points) {
      context[at - last > gapS ? "moveTo" : "lineTo"](x(at), y(value));
      last = at;
    }
    context.stroke();
  }
  captions(context, left, right, height, spanS);
}

// Write below a chart which seconds it shows.
export function captions(context, left, right, height, spanS) {
  context.fillStyle = colour("faint");
  context.textAlign = "left";
  context.fillText(`${spanS} s ago`, left, height - 4);
  context.textAlign = "right";
  context.fillText("now", right, height - 4);
  context.textAlign = "left";
}
