// The live page: asks once a second how the server does, and shows it. While the tab is hidden it asks nothing.

import { ask, follow, hasKey, setKey } from "./server.js";
import { drawGraph, figuresOf } from "./graph.js";
import { KEPT_S, drawLatency, drawTimeline } from "./charts.js";
import { buildForm } from "./form.js";

const EVERY_MS = 1000;
const note = document.getElementById("note"), keyForm = document.getElementById("key");
const shown = new Map(); // by the id of the model
let catalogue = null, lastFailure = 0, lastBucket = 0, buckets = [], loadPath = null;

keyForm.addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(keyForm.querySelector("input").value);
  keyForm.hidden = true;
});
for (const link of document.querySelectorAll("nav a")) link.addEventListener("click", follow);
document.addEventListener("visibilitychange", () => document.hidden || look());

let looking = false;
async function look() {
  if (looking) return;
  looking = true;
  try {
    while (!document.hidden) {
      await show();
      await new Promise((done) => setTimeout(done, EVERY_MS));
    }
  } finally {
    looking = false;
  }
}

async function show() {
  try {
    const answer = await ask(`ui/state.json?${cursor()}`);
    if (answer.status === 401 || answer.status === 403) {
      keyForm.hidden = false;
      const said = await answer.json();
      note.textContent = hasKey() || answer.status === 403 ? said.error : "";
      return;
    }
    if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
    const state = await answer.json();
    if (state.catalogue !== catalogue) await readModels();
    showState(state);
    note.textContent = `${state.in_flight} requests in flight`;
    document.body.dataset.updates = Number(document.body.dataset.updates ?? 0) + 1;
  } catch (error) {
    note.textContent = error instanceof TypeError ? "the server cannot be reached" : error.message;
  }
}

function cursor() {
  const since = new URLSearchParams({ failures: lastFailure, load: lastBucket });
  for (const [id, one] of shown) since.set(`batches.${id}`, one.lastBatch);
  return since;
}

async function readModels() {
  const described = await (await ask("ui/models.json")).json();
  document.getElementById("server").textContent = `${described.server} ${described.version}`;
  catalogue = described.catalogue;
  for (const one of shown.values()) one.article.remove();
  shown.clear();
  for (const model of described.models) shown.set(model.id, showModel(model));
}

function showModel(model) {
  const article = document.getElementById("model").content.cloneNode(true).querySelector("article");
  const part = (name) => article.querySelector(`.${name}`);
  article.dataset.model = model.id;
  part("name").textContent = model.name;
  part("version").textContent = `version ${model.version}`;
  const slider = part("clients"), count = part("count");
  slider.max = model.most_clients;
  const one = { model, article, slider, count, lastBatch: 0, batches: [], before: null, at: 0, request: null };
  one.update = drawGraph(part("graph"), model);
  buildForm(part("form"), part("answer"), model, (request) => {
    one.request = request;
    slider.disabled = false;
    if (Number(slider.value) === 0) count.textContent = "0 clients";
  });
  slider.addEventListener("input", () => setLoad(one, Number(slider.value)));
  document.getElementById("models").append(article);
  one.latency = part("latency");
  one.timeline = part("timeline");
  one.ready = part("ready");
  return one;
}

async function setLoad(one, clients) {
  one.count.textContent = `${clients} clients`;
  for (const other of shown.values()) if (other !== one) other.slider.value = 0;
  const { path, body, headers } = one.request;
  const to = new URLSearchParams({ to: `/${path}`, clients });
  const answer = await ask(`ui/load/${encodeURIComponent(one.model.name)}?${to}`, { method: "POST", body, headers });
  if (!answer.ok) one.count.textContent = (await answer.json()).error;
}

function showState(state) {
  const { load } = state;
  if (load.path !== loadPath && load.path !== null) buckets = [];
  loadPath = load.path ?? loadPath;
  for (const bucket of load.buckets) lastBucket = Math.max(lastBucket, bucket.number);
  buckets = [...buckets, ...load.buckets].filter((one) => state.now - one.from < KEPT_S.buckets);
  for (const model of state.models) {
    const one = shown.get(model.id);
    if (!one) continue;
    one.ready.textContent = model.ready ? "ready" : "not ready";
    one.ready.classList.toggle("no", !model.ready);
    one.update(figuresOf(model.stats, one.before, Math.max(0.001, state.now - one.at)));
    one.before = model.stats;
    one.at = state.now;
    for (const batch of model.batches) one.lastBatch = Math.max(one.lastBatch, batch[0]);
    one.batches = [...one.batches, ...model.batches].filter((batch) => state.now - batch[5] < KEPT_S.batches);
    const own = one.request && `/${one.request.path}`.split("?")[0] === loadPath;
    drawLatency(one.latency, own ? buckets : [], state.now);
    drawTimeline(one.timeline, one.batches, one.model, state.now);
    if (own) one.count.textContent = load.clients ? `${load.clients} clients` : "0 clients";
    if (!load.clients && document.activeElement !== one.slider) one.slider.value = 0;
  }
  showFailures(state.failures, state.now);
}

function showFailures(failures, now) {
  const section = document.getElementById("failures"), body = section.querySelector("tbody");
  for (const one of failures) {
    lastFailure = Math.max(lastFailure, one.number);
    const row = document.createElement("tr");
    const time = new Date(Date.now() - (now - one.at) * 1000).toLocaleTimeString("en-GB");
    const cells = [[time], [one.model], [one.node ?? ""], [one.code, "code"], [one.text], [one.request_id ?? one.trace_id ?? "", "id"]];
    for (const [text, className] of cells) {
      const cell = document.createElement("td");
      cell.textContent = text;
      if (className) cell.className = className;
      row.append(cell);
    }
    body.prepend(row);
  }
  while (body.rows.length > 50) body.lastChild.remove();
  section.hidden = body.rows.length === 0;
}

look();
