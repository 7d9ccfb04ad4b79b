// Shows an answer: pictures as pictures, boxes drawn over the picture that was sent, the classes of a classifier as bars, text as text,
// tensors by their shape.

import { colour } from "./charts.js";
import { made } from "./elements.js";

const MOST_ROWS = 40, MOST_LABELS = 12, BOX = "#d81b60";

// Make the elements that show the answer of a request; `picture` is the File that was sent, if it was one, and stands beside it.
export async function answerOf(answer, picture, ms) {
  const kind = (answer.headers.get("content-type") ?? "").split(";")[0], id = answer.headers.get("x-request-id");
  const about = [`${answer.status}`, `${ms.toFixed(1)} ms`, kind, id ? `request id ${id}` : ""].filter(Boolean);
  const summary = made("div", { className: "summary" }, about.join(" · "));
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    return [summary, made("div", { className: "error" }, said.error ?? answer.statusText)];
  }
  const values = made("div", { className: "values" });
  let boxes = [];
  if (kind.startsWith("image/")) {
    values.append(made("img", { alt: "the answer", src: URL.createObjectURL(await answer.blob()) }));
  } else if (kind === "application/json") {
    const outputs = outputsOf(await answer.json());
    boxes = Object.values(outputs).flatMap(boxesIn);
    for (const [name, value] of Object.entries(outputs)) showValue(values, name, value);
  } else {
    values.append(made("pre", {}, await answer.text()));
  }
  const shown = picture && await drawn(picture, boxes).catch(() => null); // a file can be named as a picture and be none
  return [summary, made("div", { className: "beside" }, ...(shown ? [shown] : []), values)];
}

// The outputs by name, from either form of answer: {"result": ...}, or the list of tensors of the protocol.
function outputsOf(body) {
  if (!Array.isArray(body.outputs) || body.model_name === undefined) return body;
  return Object.fromEntries(body.outputs.map((one) => [one.name, outputOf(one)]));
}

// One tensor, or what is written in it as JSON.
function outputOf({ data, shape, datatype, parameters }) {
  if (parameters?.content_type !== "application/json") return { tensor: data, shape, datatype };
  return data.length === 1 ? JSON.parse(data[0]) : data.map((one) => JSON.parse(one));
}

function showValue(parent, name, value) {
  const rows = rankedIn(value);
  if (rows) {
    rows.slice(0, MOST_ROWS).forEach((row, index) => parent.append(made("h3", {}, rows.length > 1 ? `${name} ${index}` : name), rankedBars(row)));
    return;
  }
  if (value !== null && typeof value === "object" && typeof value.text === "string") {
    parent.append(made("h3", {}, `${name}: text`), made("div", { className: "text" }, value.text));
    const { text, ...rest } = value;
    if (Object.keys(rest).length) parent.append(details(rest));
  } else if (typeof value === "string") {
    parent.append(made("h3", {}, name), made("div", { className: "text" }, value));
  } else if (value !== null && typeof value === "object" && value.tensor) {
    showTensor(parent, name, value.tensor.flat(Infinity), value.shape, value.datatype);
  } else if (Array.isArray(value) && shapeOf(value) !== null) {
    showTensor(parent, name, value.flat(Infinity), shapeOf(value), "");
  } else {
    parent.append(made("h3", {}, name), made("pre", {}, JSON.stringify(value, null, 1)));
  }
}

// The classes of a classifier in a value, a list of [name, score] for each row: of a list of objects that have both and nothing else,
// of one such object, or of a list of such lists. Null: it is something else.
function rankedIn(value) {
  if (Array.isArray(value) && value.length && value.every(Array.isArray)) {
    const rows = value.map(rankedIn);
    return rows.every((row) => row?.length === 1) ? rows.flat() : null;
  }
  const row = (Array.isArray(value) ? value : [value]).map((one) => {
    if (one === null || typeof one !== "object" || Object.keys(one).length !== 2) return null;
    const [name, score] = namedScore(one);
    return ["string", "number"].includes(typeof name) && typeof score === "number" ? [String(name), score] : null;
  });
  return row.length && !row.includes(null) ? [row] : null;
}

// Bars as long as the scores: of all from 0 to 1, or else beside the greatest.
function rankedBars(row) {
  const shares = row.every(([, score]) => score >= 0 && score <= 1), most = shares ? 1 : Math.max(...row.map(([, score]) => score)) || 1;
  return made("dl", { className: "ranked" }, ...row.slice(0, MOST_ROWS).flatMap(([name, score]) => {
    const bar = made("i");
    bar.style.width = `${100 * Math.min(1, Math.max(0, score / most))}%`;
    const text = shares ? `${(100 * score).toFixed(1)} %` : score.toPrecision(4);
    return [made("dt", {}, name), made("dd", {}, made("span", { className: "bar" }, bar), made("span", { className: "score" }, text))];
  }));
}

function details(value) {
  const element = made("details", {});
  element.append(made("summary", {}, `more: ${Object.keys(value).join(", ")}`), made("pre", {}, JSON.stringify(value, null, 1)));
  return element;
}

// The shape of nested lists of numbers, or null where they are none, or of different lengths.
function shapeOf(value) {
  if (typeof value === "number" || typeof value === "boolean") return [];
  if (!Array.isArray(value)) return null;
  if (value.length === 0) return [0];
  const inner = value.map(shapeOf);
  if (inner.some((one) => one === null || one.join() !== inner[0].join())) return null;
  return [value.length, ...inner[0]];
}

function showTensor(parent, name, flat, shape, datatype) {
  parent.append(made("h3", {}, `${name}: ${datatype} [${shape.join(", ")}]`));
  const image = imageOf(flat, shape);
  if (image) parent.append(image);
  else if (flat.length > 1 && flat.every((one) => typeof one === "number")) parent.append(bars(flat));
  const shown = flat.slice(0, MOST_ROWS).map((one) => (typeof one === "number" && !Number.isInteger(one) ? one.toPrecision(5) : one));
  parent.append(made("pre", {}, shown.join("  ") + (flat.length > MOST_ROWS ? `  … ${flat.length} in all` : "")));
}

// A canvas with the numbers as bars, the greatest named.
function bars(values) {
  const canvas = made("canvas"), wide = 420, high = 70, shown = values.slice(0, wide);
  canvas.width = wide;
  canvas.height = high;
  const context = canvas.getContext("2d"), low = Math.min(0, ...shown), top = Math.max(0, ...shown), span = top - low || 1;
  context.fillStyle = colour("blue");
  shown.forEach((value, index) => {
    const y = (one) => high - ((one - low) / span) * high;
    context.fillRect((index * wide) / shown.length, Math.min(y(0), y(value)), Math.max(1, wide / shown.length - 1), Math.max(1, Math.abs(y(value) - y(0))));
  });
  const greatest = shown.indexOf(Math.max(...shown));
  canvas.title = `the greatest is number ${greatest}: ${shown[greatest]}`;
  return canvas;
}

// A tensor that can be a picture, [H, W, 3], [3, H, W] or [1, 3, H, W], as a canvas; values are spread over 0 to 255.
function imageOf(flat, shape) {
  const axes = shape[0] === 1 && shape.length === 4 ? shape.slice(1) : shape;
  if (axes.length !== 3 || flat.length < 300) return null;
  const last = axes[2] === 3, first = axes[0] === 3;
  if (!last && !first) return null;
  const [height, width] = last ? axes : axes.slice(1), plane = height * width;
  let low = Infinity, top = -Infinity;
  for (const one of flat) { low = Math.min(low, one); top = Math.max(top, one); }
  const whole = low >= 0 && top > 1 && top <= 255, scale = whole ? 1 : 255 / (top - low || 1), zero = whole ? 0 : low;
  const canvas = made("canvas"), pixels = new ImageData(width, height);
  canvas.width = width;
  canvas.height = height;
  for (let at = 0; at < plane; at++) {
    for (let channel = 0; channel < 3; channel++) {
      pixels.data[at * 4 + channel] = (flat[last ? at * 3 + channel : channel * plane + at] - zero) * scale;
    }
    pixels.data[at * 4 + 3] = 255;
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

// Find boxes in a value: objects with a quad or a box, and lists of four numbers or of four corners under such a name.
function boxesIn(value) {
  const found = [];
  const look = (one, name) => {
    if (Array.isArray(one)) {
      const corners = cornersOf(one, name);
      if (corners) found.push({ corners, label: "" });
      else for (const inner of one.slice(0, 2000)) look(inner, name);
    } else if (one !== null && typeof one === "object" && !one.tensor) {
      const key = ["quad", "box", "bbox", "xyxy"].find((name) => Array.isArray(one[name]));
      const corners = key && cornersOf(one[key], "boxes");
      if (corners) found.push({ corners, label: labelOf(one) });
      else for (const [inner, value] of Object.entries(one)) look(value, inner);
    }
  };
  look(value, "");
  return found;
}

// Class and score of an object, undefined where it has none.
function namedScore(one) {
  return [one.label ?? one.class_name ?? one.class ?? one.name, one.confidence ?? one.score ?? one.probability];
}

function labelOf(one) {
  const [name = "", score] = namedScore(one);
  return [one.text ?? name, typeof score === "number" ? score.toFixed(2) : ""].filter((part) => part !== "").join(" ");
}

function cornersOf(list, name) {
  const numbers = (some) => some.every((one) => typeof one === "number");
  if (!/box|quad|xyxy/.test(name)) return null;
  if (list.length === 4 && numbers(list)) {
    const [x1, y1, x2, y2] = list;
    return [[x1, y1], [x2, y1], [x2, y2], [x1, y2]];
  }
  const corners = list.length === 4 && list.every((one) => Array.isArray(one) && one.length === 2 && numbers(one));
  return corners ? list : null;
}

// Write the label of a box onto a filled ground above its highest corner, or below that where the picture ends.
function drawLabel(context, { corners, label }, size) {
  const [x, y] = corners.reduce((best, one) => (one[1] < best[1] || (one[1] === best[1] && one[0] < best[0]) ? one : best));
  const wide = context.measureText(label).width + 2 * size, tall = size * 11;
  const left = Math.max(0, Math.min(x - size / 2, context.canvas.width - wide)), top = Math.max(0, y - tall);
  context.fillStyle = BOX;
  context.fillRect(left, top, wide, tall);
  context.fillStyle = "#fff";
  context.fillText(label, left + size, top + tall - 2.8 * size);
}

async function drawn(picture, boxes) {
  const image = await createImageBitmap(picture), canvas = made("canvas", { className: boxes.length ? "boxes" : "sent", role: "img" });
  canvas.ariaLabel = `${picture.name ?? "the picture"} as it was sent${boxes.length ? `, with ${boxes.length} boxes of the answer` : ""}`;
  canvas.width = image.width;
  canvas.height = image.height;
  canvas.dataset.boxes = boxes.length;
  const context = canvas.getContext("2d"), size = Math.max(2, image.width / 400);
  context.drawImage(image, 0, 0);
  context.lineWidth = size;
  context.font = `${size * 9}px system-ui, sans-serif`;
  for (const { corners, label } of boxes) {
    context.strokeStyle = BOX;
    context.beginPath();
    corners.forEach(([x, y], index) => context[index ? "lineTo" : "moveTo"](x, y));
    context.closePath();
    context.stroke();
  }
  // Above all boxes, so that none is drawn through a label.
  if (boxes.length <= MOST_LABELS) for (const box of boxes) if (box.label) drawLabel(context, box, size);
  return canvas;
}
