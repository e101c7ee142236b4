// Charts of lines, marks and stacked areas over steps or events, from Plotly's JSON (components/graph.py) without Plotly:
// 4.8 MB of script, which take half a second to start, in which nothing moves.
(function () {
  const TYPES = { i1: Int8Array, i2: Int16Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };
  const DRAG_PX = 4, PAD_PX = 12, HEADROOM = 1.06;
  const CORNERS = [[0, -1], [1, 0], [0, 1], [-1, 0], [0, -1]];
  const known = new WeakMap();
  let hovered = null, held = null, picks = 0;

  const isStacked = (trace) => Boolean(trace.stackgroup);
  const isNamed = (trace) => trace.hoverinfo !== "skip";
  const hasMarks = (trace) => (trace.mode || "").includes("markers");

  function column(packed) {
    if (Array.isArray(packed)) return packed;
    return new TYPES[packed.dtype](Uint8Array.from(atob(packed.bdata), (letter) => letter.charCodeAt(0)).buffer);
  }

  // The columns of every trace, in bytes; a stacked one has the levels below and above it.
  function read({ data, layout }) {
    let below = null;
    const traces = data.map(function (trace) {
      const xs = column(trace.x), ys = Float64Array.from(column(trace.y)), base = below;
      if (isStacked(trace)) below = base ? ys.map((y, i) => y + base[i]) : ys;
      return { ...trace, xs, ys, base, tops: isStacked(trace) ? below : ys, rows: trace.customdata ? column(trace.customdata) : null };
    });
    let [first, last, top] = [Infinity, -Infinity, 1];
    for (const { xs, tops } of traces) {
      for (const x of xs) [first, last] = [Math.min(first, x), Math.max(last, x)];
      for (const y of tops) top = Math.max(top, y);
    }
    if (layout.xaxis.ticktext) [first, last] = layout.xaxis.range;
    if (!(last > first)) [first, last] = layout.xaxis.range || [first - 0.5, last + 0.5];
    return { traces, layout, extent: [first, last], hi: top * HEADROOM, isPadded: traces.some(hasMarks) };
  }

  function view(its, { left, top, width, height }) {
    const { margin } = its.layout, box = { left: left + margin.l, top: top + margin.t, width: Math.max(width - margin.l - margin.r, 1), height: Math.max(height - margin.t - margin.b, 1) };
    // Marks at the edges are whole.
    const pad = its.isPadded && !its.range ? PAD_PX : 0, [a, b] = its.range || its.extent;
    const scale = (box.width - 2 * pad) / (b - a);
    return { box, a, b, lo: 0, hi: its.hi, px: (x) => box.left + pad + (x - a) * scale, py: (y) => box.top + box.height * (1 - y / its.hi), data: (px) => a + (px - box.left - pad) / scale };
  }

  // ------------------------------------------------------------------------------ drawing
  const colorOf = (trace, look, t) => (trace.uid === "allocated" ? t.ink : look.color);

  function area(context, { xs, tops, base, fillcolor }, { px, py }) {
    const { steps } = window.vramscope.draw, last = xs.length - 1;
    context.beginPath();
    steps(context, xs, tops, 0, xs.length, px, py);
    const foot = (i) => py(base ? base[i] : 0);
    for (let i = last; i > 0; i--) {
      context.lineTo(px(xs[i]), foot(i - 1));
      context.lineTo(px(xs[i - 1]), foot(i - 1));
    }
    context.fillStyle = fillcolor;
    context.fill();
  }

  function line(context, trace, { px, py }, t) {
    context.beginPath();
    trace.xs.forEach((x, i) => (i ? context.lineTo(px(x), py(trace.ys[i])) : context.moveTo(px(x), py(trace.ys[i]))));
    context.strokeStyle = colorOf(trace, trace.line, t);
    context.lineWidth = trace.line.width;
    context.lineJoin = "round"; // a sharp corner would reach beyond its value
    context.setLineDash(/px/.test(trace.line.dash || "") ? trace.line.dash.split(",").map(parseFloat) : []);
    context.stroke();
    context.setLineDash([]);
  }

  /** @param {{size: number, symbol?: string, line?: {color: string, width: number}, color: string}} look */
  function mark(context, look, x, y) {
    const { size, symbol, line: edge, color } = look, half = size / 2;
    context.beginPath();
    if (symbol === "diamond") CORNERS.forEach(([dx, dy], i) => context[i ? "lineTo" : "moveTo"](x + 1.3 * half * dx, y + 1.3 * half * dy));
    else context.arc(x, y, half, 0, 7);
    if (edge) Object.assign(context, { strokeStyle: edge.color, lineWidth: edge.width });
    else context.fillStyle = color;
    context[edge ? "stroke" : "fill"]();
  }

  function marks(context, trace, { px, py, box }, t) {
    const look = { ...trace.marker, color: colorOf(trace, trace.marker, t) };
    trace.xs.forEach(function (each, i) {
      const x = px(each);
      if (x >= box.left - 1 && x <= box.left + box.width + 1) mark(context, look, x, py(trace.ys[i]));
    });
  }

  function positions(context, { layout }, now, t) {
    const { box } = now, D = window.vramscope.draw, step = D.spacing(now.b - now.a, box.width, 90, 1), foot = box.top + box.height;
    context.textAlign = "center";
    context.textBaseline = "top";
    let free = -Infinity;
    for (const value of D.ticks(now.a, now.b, step)) {
      const x = Math.round(now.px(value)) + 0.5, text = `${layout.xaxis.tickprefix}${(value + 0).toLocaleString("en-US")}`, half = context.measureText(text).width / 2;
      context.fillStyle = t.line;
      context.fillRect(x - 0.5, foot, 1, 4);
      context.fillStyle = t.ink3;
      // The last one does not leave the picture.
      const at = Math.min(x, box.left + box.width + 14 - half);
      if (at - half > free) context.fillText(text, at, foot + 8);
      free = Math.max(free, at + half + 8);
    }
  }

  // Dark or light letters: whichever have more contrast with an area of that color's luminance.
  function inkOn(color) {
    const [r, g, b] = /^#(..)(..)(..)/.exec(color).slice(1).map((hex) => (parseInt(hex, 16) / 255) ** 2.2);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.22 ? "#1F2933" : "#fff";
  }

  // Columns with a name each, and the phases that they are of.
  function named(context, { xaxis, shapes }, { px, box }, t) {
    const foot = box.top + box.height, wide = px(1) - px(0), every = Math.max(1, Math.ceil(14 / wide));
    context.textBaseline = "middle";
    for (const { x0, x1, label: { text }, fillcolor } of shapes) {
      context.fillStyle = fillcolor;
      context.fillRect(px(x0) + 0.5, foot + 2, px(x1) - px(x0) - 1, 15);
      context.fillStyle = inkOn(fillcolor);
      context.textAlign = "center";
      if (context.measureText(text).width < px(x1) - px(x0) - 6) context.fillText(text, px((x0 + x1) / 2), foot + 10);
      context.fillStyle = t.line;
      context.fillRect(Math.round(px(x0)), box.top, 1, box.height);
    }
    context.fillStyle = t.ink2 || t.ink3;
    context.textAlign = "right";
    xaxis.ticktext.forEach(function (text, i) {
      if (i % every) return;
      context.save();
      context.translate(px(i + 0.5), foot + 24);
      context.rotate(-Math.PI / 3);
      context.fillText(text, 0, 0);
      context.restore();
    });
  }

  // The place in an area where a text of that half width has most room above and below.
  function roomiest({ xs, tops, base }, half, { px, py, box }) {
    const at = Array.from(xs, px), floor = (i) => py(base ? base[i] : 0);
    let best = { room: 0, x: 0, y: 0 };
    for (let x = box.left + half; x <= box.left + box.width - half; x += 8) {
      let top = -Infinity, foot = Infinity;
      for (let i = 0; i < at.length && at[i] < x + half; i++) {
        if (i + 1 < at.length && at[i + 1] < x - half) continue;
        [top, foot] = [Math.max(top, py(tops[i])), Math.min(foot, floor(i))];
      }
      if (foot - top > best.room) best = { room: foot - top, x, y: (foot + top) / 2 };
    }
    return best;
  }
  // A name upon its area, where it fits inside; the key has all of them.
  const ROOM_PX = 15;
  function upon(context, trace, now) {
    const text = `${trace.name} ${trace.meta}`.replace(/,.*$/, "");
    for (const words of [text, text.replace(/ [=≈].*$/, "")]) {
      const half = context.measureText(words).width / 2 + 5, { room, x, y } = roomiest(trace, half, now);
      if (room < ROOM_PX) continue;
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.fillStyle = inkOn(trace.fillcolor);
      context.fillText(words, x, y);
      return;
    }
  }

  // Everything but what follows the pointer; also for a file.
  function scene(context, its, place, t) {
    const D = window.vramscope.draw, now = view(its, place), { box } = now, { shapes = [], annotations = [] } = its.layout;
    const stacked = its.traces.filter((trace) => isStacked(trace) && trace.xs.length), others = its.traces.filter((trace) => !isStacked(trace) && trace.xs.length);
    context.font = `12px ${t.sans}`;
    D.begin(context, box);
    for (const { x0, x1, y1, fillcolor } of shapes) {
      if (!y1) continue; // a band at the foot
      context.fillStyle = fillcolor;
      context.fillRect(now.px(x0), box.top, now.px(x1) - now.px(x0), box.height);
    }
    for (const trace of stacked) area(context, trace, now);
    context.restore();
    context.font = `12px ${t.sans}`;
    D.heights(context, box, now, t, stacked.length > 0);
    D.begin(context, box);
    for (const trace of others) if (trace.line && trace.mode.includes("lines")) line(context, trace, now, t);
    context.restore();
    context.font = `12px ${t.sans}`;
    for (const trace of others) if (hasMarks(trace)) marks(context, trace, now, t);
    if (its.layout.xaxis.ticktext) named(context, its.layout, now, t);
    else positions(context, its, now, t);
    for (const trace of stacked) if (trace.meta) upon(context, trace, now);
    context.textAlign = "left";
    context.textBaseline = "bottom";
    context.fillStyle = t.ink3;
    for (const { text, x } of annotations) context.fillText(text, Math.max(now.px(x), box.left) + 2, box.top + box.height - 2);
  }

  const placeOf = (host) => ({ left: 0, top: 0, width: host.clientWidth, height: host.clientHeight });
  function paint(host) {
    const place = placeOf(host), D = window.vramscope.draw;
    if (!place.width || !place.height) return;
    scene(D.sharp(host.firstChild, place.width, place.height), known.get(host), place, D.theme({}));
    host.dataset.ready = "yes";
    over(host);
  }

  function take(host) {
    const text = host.dataset.figure, its = known.get(host);
    if (!text || (its && its.text === text)) return;
    if (!its) {
      host.replaceChildren(document.createElement("canvas"), document.createElement("canvas"));
      resized.observe(host);
    }
    known.set(host, { text, range: its ? its.range : null, ...read(JSON.parse(text)) });
    // The first size of it is reported before the next frame.
    if (its) paint(host);
  }

  const resized = new ResizeObserver((entries) => { for (const { target } of entries) paint(target); });
  // Before the next frame is drawn.
  new MutationObserver(function (changes) {
    for (const { type, target, addedNodes } of changes) {
      if (type === "attributes" && target === document.documentElement) for (const host of document.querySelectorAll("[data-figure][data-ready]")) paint(host);
      else if (type === "attributes") take(target);
      for (const node of addedNodes) {
        if (node.nodeType !== 1) continue;
        if (node.dataset.figure !== undefined) take(node);
        for (const inner of node.querySelectorAll("[data-figure]")) take(inner);
      }
    }
  }).observe(document.documentElement, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-figure", "data-theme"] });

  // ------------------------------------------------------------------------------- pointer
  const hostOf = (event) => { const host = event.target.closest && event.target.closest("[data-figure]"); return host && known.has(host) ? host : null; };
  function local(host, event) {
    const { left, top } = host.getBoundingClientRect(), now = view(known.get(host), placeOf(host)), x = event.clientX - left, y = event.clientY - top;
    return { x, now, isInside: x >= now.box.left && x <= now.box.left + now.box.width && y >= now.box.top && y <= now.box.top + now.box.height };
  }

  // The position whose values are shown: the nearest point, or of areas the one whose level goes on at the pointer.
  function nearest(its, x) {
    const { before } = window.vramscope.draw;
    let best = null;
    for (const trace of its.traces.filter((each) => isNamed(each) && each.xs.length)) {
      const i = Math.max(before(trace.xs, x), 0), near = isStacked(trace) ? [i] : [i, Math.min(i + 1, trace.xs.length - 1)];
      for (const k of near) if (best === null || Math.abs(trace.xs[k] - x) < Math.abs(best - x)) best = trace.xs[k];
    }
    return best;
  }
  function valuesAt(its, x) {
    const found = [];
    for (const trace of its.traces.filter(isNamed)) {
      const i = trace.xs.indexOf(x);
      if (i >= 0) found.push({ trace, i });
    }
    return found;
  }

  function over(host) {
    const its = known.get(host), { width, height } = placeOf(host), D = window.vramscope.draw, t = D.theme({});
    const at = hovered && hovered.host === host ? hovered.x : null, drag = held && held.host === host && held.to !== null ? held : null;
    if (at === null && !drag && !its.hasOver) return;
    its.hasOver = at !== null || Boolean(drag);
    const context = D.sharp(host.lastChild, width, height), now = view(its, placeOf(host)), { box } = now;
    if (drag) {
      context.fillStyle = t.accent;
      context.globalAlpha = 0.18;
      context.fillRect(Math.min(drag.from, drag.to), box.top, Math.abs(drag.to - drag.from), box.height);
      context.globalAlpha = 1;
    } else if (at !== null) {
      context.fillStyle = t.ink3;
      context.fillRect(Math.round(now.px(at)), box.top, 1, box.height);
      for (const { trace, i } of valuesAt(its, at)) mark(context, { size: 7, color: isStacked(trace) ? t.ink3 : colorOf(trace, trace.line, t) }, now.px(at), now.py(trace.tops[i]));
    }
  }

  function tell(host, event, x) {
    const its = known.get(host), { bytes } = window.vramscope, found = valuesAt(its, x), isSum = found.length > 1 && found.every(({ trace }) => isStacked(trace));
    const lines = found.map(({ trace, i }) => ["tip-size", `${trace.name} ${bytes(trace.ys[i])}`]);
    if (isSum) lines.push(["tip-size", `together ${bytes(found.at(-1).trace.tops[found.at(-1).i])}`]);
    const { xaxis } = its.layout, name = xaxis.ticktext ? xaxis.ticktext[Math.min(Math.floor(x), xaxis.ticktext.length - 1)] : `${xaxis.tickprefix}${x.toLocaleString("en-US")}`;
    window.vramscope.showTip(event, [["tip-name", name], ...(isSum ? lines.reverse() : lines)]);
  }

  function leave() {
    if (!hovered) return;
    const { host } = hovered;
    hovered = null;
    window.vramscope.hideTip();
    over(host);
  }

  document.addEventListener("pointermove", function (event) {
    const host = held ? held.host : hostOf(event);
    if (!host) { leave(); return; }
    const { x, now, isInside } = local(host, event), its = known.get(host);
    if (held && (held.to !== null || Math.abs(x - held.from) > DRAG_PX)) {
      held.to = Math.min(Math.max(x, now.box.left), now.box.left + now.box.width);
      leave();
      over(host);
      return;
    }
    const at = isInside ? nearest(its, now.data(x)) : null;
    if (at === null || (hovered && hovered.host !== host)) leave();
    if (at === null) return;
    hovered = { host, x: at };
    over(host);
    tell(host, event, at);
  });
  document.addEventListener("pointerdown", function (event) {
    const host = event.button === 0 ? hostOf(event) : null, its = host && known.get(host);
    if (!host || its.layout.xaxis.fixedrange) return;
    const { x, isInside } = local(host, event);
    its.isDragged = false;
    if (isInside) held = { host, from: x, to: null };
  });
  document.addEventListener("pointerup", function () {
    const from = held;
    held = null;
    if (!from || from.to === null) return;
    const its = known.get(from.host), now = view(its, placeOf(from.host)), edges = [from.from, from.to].map(now.data).sort((a, b) => a - b);
    if (edges[1] - edges[0] > 0.5) its.range = edges;
    its.isDragged = true;
    paint(from.host);
  });
  document.addEventListener("click", function (event) {
    const host = hostOf(event), its = host && known.get(host);
    if (!host) return;
    if (its.isDragged) { its.isDragged = false; return; }
    const { x, now, isInside } = local(host, event), at = isInside ? nearest(its, now.data(x)) : null;
    const picked = at === null ? null : valuesAt(its, at).find(({ trace }) => trace.rows);
    if (!picked) return;
    picks += 1;
    dash_clientside.set_props(`${host.id}-pick`, { data: { row: picked.trace.rows[picked.i], picks } });
  });
  document.addEventListener("dblclick", function (event) {
    const host = hostOf(event);
    if (!host) return;
    known.get(host).range = null;
    paint(host);
  });

  // The same picture in a file.
  function paintPlot(context, host, left, top, width, height) {
    scene(context, known.get(host), { left, top, width, height }, window.vramscope.draw.theme({}));
  }

  // And its numbers; a column with a name of its own has that for its place.
  function plotRows(host) {
    const { traces, layout: { xaxis } } = known.get(host), names = xaxis.ticktext;
    const found = [["series", xaxis.tickprefix.trim() || "position", ...(names ? ["in"] : []), "bytes"]];
    for (const { name, xs, ys } of traces.filter(isNamed)) xs.forEach((x, i) => found.push([name, x, ...(names ? [names[Math.min(Math.floor(x), names.length - 1)]] : []), ys[i]]));
    return found;
  }
  window.vramscope = Object.assign(window.vramscope || {}, { paintPlot, plotRows });
})();
