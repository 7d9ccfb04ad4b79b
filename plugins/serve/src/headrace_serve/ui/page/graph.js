// The graph of a model: a box per node with its live figures, an arrow per edge with how many requests go along it.

import { number } from "./server.js";

const WIDTH = 240, HEIGHT = 104, GAP_X = 96, GAP_Y = 22, PAD = 8;

function element(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Put each node one column to the right of its last predecessor. Edges of Repost may lead back, and move nothing.
function columnsOf(nodes, edges) {
  const column = Object.fromEntries(nodes.map((node) => [node.name, 0]));
  for (const _ of nodes) {
    for (const edge of edges) {
      if (edge.keys !== "Repost") column[edge.to] = Math.max(column[edge.to], column[edge.from] + 1);
    }
  }
  return column;
}

function shortened(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

// Draw the graph into an element; returns a function that writes new figures into it.
export function drawGraph(parent, model) {
  const column = columnsOf(model.nodes, model.edges), row = {}, filled = [];
  for (const node of model.nodes) {
    const at = column[node.name];
    filled[at] = (filled[at] ?? 0) + 1;
    row[node.name] = filled[at] - 1;
  }
  const left = (name) => PAD + column[name] * (WIDTH + GAP_X), top = (name) => PAD + row[name] * (HEIGHT + GAP_Y);
  const long = model.edges.filter((edge) => column[edge.to] - column[edge.from] !== 1).length;
  const width = 2 * PAD + filled.length * WIDTH + (filled.length - 1) * GAP_X;
  const below = PAD + Math.max(...filled) * (HEIGHT + GAP_Y);
  const height = below + long * 18 + PAD;
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, width });
  const end = element("marker", { id: `end-${model.id}`, viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" });
  end.append(element("path", { d: "M0 0 L8 4 L0 8 z", fill: "#667384" }));
  svg.append(end);

  let dipped = 0;
  const rates = model.edges.map((edge) => {
    const x1 = left(edge.from) + WIDTH, y1 = top(edge.from) + HEIGHT / 2, x2 = left(edge.to), y2 = top(edge.to) + HEIGHT / 2;
    const far = column[edge.to] - column[edge.from] !== 1;
    const floor = below + (far ? 18 * dipped++ : 0) + 6;
    const middle = (x1 + x2) / 2;
    const path = far
      ? `M${x1} ${y1} C${x1 + 50} ${y1} ${x1 + 20} ${floor} ${x1 + 60} ${floor} L${x2 - 60} ${floor} C${x2 - 20} ${floor} ${x2 - 50} ${y2} ${x2} ${y2}`
      : `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`;
    const line = element("path", { d: path, fill: "none", stroke: "#667384", "marker-end": `url(#end-${model.id})` });
    if (edge.keys === "Repost") line.setAttribute("stroke-dasharray", "4 3");
    const y = far ? floor : (y1 + y2) / 2;
    const rate = element("text", { x: middle, y: y - 5, "text-anchor": "middle", class: "rate" });
    const keys = element("text", { x: middle, y: y + 14, "text-anchor": "middle", class: "mono" }, far ? "" : shortened(edge.keys, 14));
    keys.append(element("title", {}, edge.keys));
    svg.append(line, rate, keys);
    return rate;
  });

  const boxes = Object.fromEntries(model.nodes.map((node) => {
    const x = left(node.name), y = top(node.name), group = element("g", { "data-node": node.name });
    const box = element("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 6, fill: "#fbfcfe", stroke: "#9db0c8" });
    const expression = element("text", { x: x + 10, y: y + 35, class: "mono" }, shortened(node.expression, 34));
    expression.append(element("title", {}, node.expression));
    const marks = [node.each ? `each ${node.each}` : "", node.or ? "or" : "", node.device ?? "", node.alias_of ? `= ${node.alias_of}` : ""];
    const figures = element("text", { x: x + 10, y: y + 54, class: "figures" });
    const times = element("text", { x: x + 10, y: y + 71, class: "times faint" });
    const errors = element("text", { x: x + WIDTH - 10, y: y + 19, class: "errors bad", "text-anchor": "end" });
    group.append(
      box,
      element("text", { x: x + 10, y: y + 19, class: "title" }, [node.name, ...marks.filter(Boolean)].join(" · ")),
      expression, figures, times, errors,
    );
    const bars = Array.from({ length: Math.min(node.instances, 16) }, (_, index) => {
      const wide = (WIDTH - 20) / Math.min(node.instances, 16) - 3, at = x + 10 + index * (wide + 3);
      const full = element("rect", { x: at, y: y + 82, width: wide, height: 10, rx: 2, fill: "#e3e9f1" });
      const used = element("rect", { x: at, y: y + 82, width: 0, height: 10, rx: 2, fill: "#2463b4" });
      used.append(element("title", {}));
      group.append(full, used);
      return { used, wide };
    });
    svg.append(group);
    return [node.name, { box, figures, times, errors, bars, node }];
  }));
  parent.replaceChildren(svg);

  return function update(figures) {
    for (const [name, shown] of Object.entries(boxes)) {
      const one = figures.nodes[name];
      if (!one) continue;
      shown.figures.textContent = `${number(one.rate)}/s · ${one.waiting} waiting · batch ${number(one.batch)} of ${shown.node.most ?? "∞"}`;
      shown.times.textContent = `${number(one.forward.p50)} ms, p99 ${number(one.forward.p99)} · queued ${number(one.queue.p50)}`;
      shown.errors.textContent = one.failed ? `${one.failed} failed` : "";
      shown.box.setAttribute("stroke", one.failing ? "#b3261e" : "#9db0c8");
      shown.bars.forEach(({ used, wide }, index) => {
        const busy = one.busy[index] ?? 0;
        used.setAttribute("width", wide * Math.min(1, busy));
        used.firstChild.textContent = `instance ${index}: busy for ${Math.round(100 * busy)} % of the last second`;
      });
    }
    model.edges.forEach((edge, index) => {
      const rate = edgeRate(model, edge, figures.nodes);
      rates[index].textContent = rate === null ? "" : `${number(rate)}/s`;
    });
  };
}

// How many requests a second go along an edge. Where a node takes what comes from either of several (`or`), only the
// source can tell, and only if nothing else follows it.
function edgeRate(model, edge, nodes) {
  const target = model.nodes.find((node) => node.name === edge.to);
  if (edge.keys === "Repost" || !nodes[edge.from] || !nodes[edge.to]) return null;
  if (!target.or) return nodes[edge.to].rate;
  return model.edges.filter((one) => one.from === edge.from).length === 1 ? nodes[edge.from].okRate : null;
}

// What has happened between two answers of stats(), per node.
export function figuresOf(stats, before, seconds) {
  const nodes = {};
  for (const [name, node] of Object.entries(stats.nodes)) {
    const old = before?.nodes[name];
    const failed = Object.values(node.failed).reduce((sum, count) => sum + count, 0);
    const oldFailed = old ? Object.values(old.failed).reduce((sum, count) => sum + count, 0) : failed;
    let requests = 0, batches = 0;
    for (const [size, count] of Object.entries(node.batch_size.histogram)) {
      const more = count - (old?.batch_size.histogram[size] ?? 0);
      requests += more * Number(size);
      batches += more;
    }
    const per = (key) => (old ? Math.max(0, node[key] - old[key]) / seconds : 0);
    nodes[name] = {
      rate: per("submitted"),
      okRate: per("ok"),
      waiting: node.waiting,
      batch: batches > 0 ? requests / batches : node.batch_size.mean,
      forward: node.forward_ms,
      queue: node.queue_ms,
      failed,
      failing: failed > oldFailed,
      busy: node.instances.map((one, index) => (old ? Math.max(0, one.busy_s - (old.instances[index]?.busy_s ?? 0)) / seconds : 0)),
    };
  }
  return { nodes };
}
