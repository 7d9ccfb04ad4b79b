// A form for the inputs of a model, made from what the server says of them; it gives the request to send.

import { answerOf } from "./answer.js";
import { made } from "./elements.js";
import { ask } from "./server.js";

// Build the form of a model. `sent` is called with each request that had a good answer, which a load test may repeat. Returns a
// function that runs the first example, unless somebody has begun to use the form, or null where there is none.
export function buildForm(parent, answers, model, examples, sent) {
  const form = made("form", { className: "form" }), inputs = MAKERS[model.form.kind](form, model.form);
  const send = made("button", { textContent: "Send" });
  let last = 0; // of several requests only the last one's answer is shown
  form.append(send);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const mine = ++last;
    send.disabled = true;
    try {
      const request = await inputs.make(), began = performance.now();
      const headers = { ...request.headers, "x-request-id": `page-${Math.random().toString(36).slice(2, 10)}` };
      const answer = await ask(request.path, { method: "POST", body: request.body, headers });
      const shown = await answerOf(answer, request.picture, performance.now() - began);
      if (mine === last) answers.replaceChildren(...shown);
      if (mine === last && answer.ok) sent(request);
    } catch (error) {
      if (mine === last) answers.replaceChildren(made("div", { className: "error", textContent: error.message }));
    }
    if (mine === last) send.disabled = false;
  });
  parent.replaceChildren(form);
  const offered = examples.filter((one) => inputs.accepts(one.type));
  if (!offered.length) return null;
  const run = (file) => Promise.resolve(inputs.take(file)).then(() => form.requestSubmit());
  const first = offer(form, send, offered, run);
  return () => first().then((file) => last === 0 && !form.contains(document.activeElement) && run(file), () => {});
}

// Buttons with the examples of the server, each with its picture and its name; one that is clicked is sent. Returns what reads the
// first of them, of pictures if there are any.
function offer(form, send, examples, chosen) {
  const strip = made("div", { className: "examples" });
  form.insertBefore(made("div", {}, made("small", {}, "Or click an example:"), strip), send);
  const loaded = examples.map(({ name, type, size_bytes: size }) => {
    let file = null;
    const load = async () => {
      const answer = await ask(`ui/examples/${encodeURIComponent(name)}`);
      if (!answer.ok) throw new Error(`the example ${name} is gone`);
      return new File([await answer.blob()], name, { type });
    };
    const button = made("button", { type: "button", title: `${name}, ${size.toLocaleString("en")} bytes` });
    const read = () => (file ??= load().catch((error) => { file = null; button.title = error.message; button.disabled = true; throw error; }));
    button.addEventListener("click", () => read().then(chosen, () => {}));
    button.append(made("span", {}, name));
    strip.append(button);
    return { name, type, button, read };
  });
  const pictures = loaded.filter((one) => one.type.startsWith("image/"));
  showPictures(pictures);
  return (pictures[0] ?? loaded[0]).read;
}

// One after the other, so that pictures of many megabytes do not stand before the figures.
async function showPictures(loaded) {
  for (const { name, button, read } of loaded) {
    const found = await read().catch(() => null);
    if (found) button.prepend(made("img", { alt: name, src: URL.createObjectURL(found) }));
  }
}

// Each makes the fields of a form, and gives what the form can do: `make` its request, say whether it `accepts` a type of example,
// and `take` one.
const MAKERS = {
  // One file is the body; other inputs of the model are parameters of the query.
  file(form, about) {
    const drop = dropField(form, `Drop a file here for ${about.input}, or choose one`, () => form.requestSubmit());
    const others = about.query.map((one) => textField(form, `${one.name} (${one.datatype})`, ""));
    const text = about.text ? areaField(form, "or write its text", "") : null;
    return {
      accepts: (type) => !about.text || !type.startsWith("image/"),
      take: drop.show,
      async make() {
        const body = drop.file() ?? (text?.value ? new Blob([text.value]) : null);
        if (!body) throw new Error("Choose a file first.");
        const query = new URLSearchParams(about.query.map((one, index) => [one.name, others[index].value]));
        const path = about.query.length ? `${about.path}?${query}` : about.path;
        const kind = { "content-type": "application/octet-stream" };
        return { path, body, headers: kind, picture: body.type?.startsWith("image/") ? body : null };
      },
    };
  },

  // The body is JSON, with the fields that the model has, or any value.
  json(form, about) {
    const area = areaField(form, about.fields.length ? "" : "Any JSON", JSON.stringify(about.example, null, 1));
    for (const field of about.fields) {
      form.insertBefore(made("small", { textContent: `${field.name}: ${field.type}${field.required ? "" : ", may be left out"}. ${field.description}` }), area.parentElement);
    }
    return {
      accepts: (type) => type === "application/json",
      async take(file) { area.value = await file.text(); },
      async make() {
        JSON.parse(area.value);
        return { path: about.path, body: area.value, headers: { "content-type": "application/json" } };
      },
    };
  },

  // Tensors of the protocol: each input as nested lists, or a picture for one that has three channels.
  tensors(form, about) {
    const fields = about.inputs.map((one) => tensorField(form, one)), first = fields.find((one) => one.drop);
    return {
      accepts: (type) => first !== undefined && type.startsWith("image/"),
      take: first?.drop.show,
      async make() {
        const inputs = [];
        let picture = null;
        for (const field of fields) {
          const found = await field.make();
          if (found === null) continue;
          inputs.push(found.input);
          picture ??= found.picture;
        }
        return { path: about.path, body: JSON.stringify({ inputs }), headers: { "content-type": "application/json" }, picture };
      },
    };
  },
};

function textField(form, label, value) {
  const input = made("input", { value });
  form.append(made("label", {}, label, input));
  return input;
}

function areaField(form, label, value) {
  const area = made("textarea", { value, rows: Math.min(10, value.split("\n").length + 1), spellcheck: false });
  form.append(made("label", {}, label, area));
  return area;
}

// A place to drop a file: `file` gives it, or null, `show` takes one as if it were dropped, but for calling `changed`.
function dropField(form, text, changed) {
  const input = made("input", { type: "file" }), said = made("span", { textContent: text });
  const drop = made("label", { className: "drop" }, said, input);
  let file = null;
  const show = (one) => {
    file = one ?? null;
    said.textContent = file ? `${file.name}, ${file.size.toLocaleString("en")} bytes` : text;
  };
  const take = (one) => {
    show(one);
    if (file) changed?.();
  };
  input.addEventListener("change", () => take(input.files[0]));
  drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => { event.preventDefault(); drop.classList.remove("over"); take(event.dataTransfer.files[0]); });
  form.append(drop);
  return { file: () => file, show };
}

// The field of one tensor: `make` gives it with its shape, or null where it may be left out; `drop` is the place for its picture, if
// it can be one.
function tensorField(form, about) {
  const shape = about.shape.map((axis) => (axis < 0 ? "any" : axis)).join(", ");
  const title = `${about.name}: ${about.datatype} [${shape}]${about.optional ? ", may be left out" : ""}`;
  const channels = channelsOf(about), numbers = about.shape.map((axis) => (axis < 0 ? 1 : axis));
  const small = numbers.reduce((product, axis) => product * axis, 1) <= 4096;
  const drop = channels === null ? null : dropField(form, `Drop a picture for ${about.name}`);
  const area = areaField(form, title, about.optional || !small ? "" : JSON.stringify(filled(numbers, about.datatype)));
  if (!small && !about.optional) area.placeholder = "empty: random numbers of this shape";
  const make = async () => {
    const input = { name: about.name, datatype: about.datatype };
    const picture = drop?.file();
    if (picture) return { input: { ...input, ...(await pixelsOf(picture, about, channels)) }, picture };
    if (!area.value.trim()) {
      if (about.optional) return null;
      const data = Array.from({ length: numbers.reduce((a, b) => a * b, 1) }, () => sample(about.datatype));
      return { input: { ...input, shape: numbers, data }, picture: null };
    }
    const data = JSON.parse(area.value), sizes = [];
    for (let one = data; Array.isArray(one); one = one[0]) sizes.push(one.length);
    return { input: { ...input, shape: sizes, data: data.flat(Infinity) }, picture: null };
  };
  return { make, drop };
}

function sample(datatype) {
  if (datatype === "BYTES") return "text";
  if (datatype === "BOOL") return true;
  return datatype.includes("FP") ? Math.round(Math.random() * 1e4) / 1e4 : Math.floor(Math.random() * 100);
}

function filled(shape, datatype) {
  return shape.length ? Array.from({ length: shape[0] }, () => filled(shape.slice(1), datatype)) : sample(datatype);
}

// Where the three channels of a picture are among the axes: "last", "first", or null for a tensor that is no picture.
function channelsOf({ shape, datatype }) {
  if (shape.length < 3 || datatype === "BYTES" || datatype === "BOOL") return null;
  if (shape.at(-1) === 3) return "last";
  return shape.at(-3) === 3 ? "first" : null;
}

// The pixels of a picture as a tensor: in the size that the shape says, 0 to 255 for integers and 0 to 1 for others.
async function pixelsOf(picture, { shape, datatype }, channels) {
  const image = await createImageBitmap(picture);
  const [high, wide] = channels === "last" ? shape.slice(-3, -1) : shape.slice(-2);
  const height = high > 0 ? high : image.height, width = wide > 0 ? wide : image.width;
  const canvas = made("canvas", { width, height }), context = canvas.getContext("2d");
  context.drawImage(image, 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height), plane = width * height, pixels = new Array(3 * plane);
  const scale = datatype.includes("FP") ? 1 / 255 : 1;
  for (let at = 0; at < plane; at++) {
    for (let channel = 0; channel < 3; channel++) {
      pixels[channels === "last" ? at * 3 + channel : channel * plane + at] = data[at * 4 + channel] * scale;
    }
  }
  const inner = channels === "last" ? [height, width, 3] : [3, height, width];
  return { shape: [...shape.slice(0, -3).map(() => 1), ...inner], data: pixels };
}
