// One timeline per page: drawn at once from what the browser has, refined by the server.
(function () {
  const D = window.vramscope.draw, S = window.vramscope.store, T = S.state;
  const NEAR_PX = 5, CLICK_PX = 4, LEAST_EVENTS = 4, LEAST_S = 2e-6, KEPT = 6, DOUBLE_MS = 230, CALLS_PX = 25;
  const TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i1: Int8Array, i2: Int16Array, i4: Int32Array, f8: Float64Array };
  const stores = new Map(), tracks = new Map();
  let pointer = null, pageScrolled = 0;
  // The instant that was chosen elsewhere comes into view when its position is known.
  let isToReveal = false;

  // ------------------------------------------------------------------------------- data
  function columns(buffer) {
    const n = new DataView(buffer).getUint32(0, true);
    const data = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, n)));
    let at = 4 + n;
    for (const [name, length, kind, unit, divisor, sums] of data.columns) {
      const size = TYPES[kind].BYTES_PER_ELEMENT * length;
      let numbers = new TYPES[kind](buffer.slice(at, at + size));
      if (sums) numbers = summed(numbers, new TYPES[sums](length));
      data[name] = unit === 1 && divisor === 1 ? numbers : Float64Array.from(numbers, (n) => n * unit / divisor);
      at += size;
    }
    return data;
  }
  function summed(changes, sums) {
    for (let i = 0, sum = 0; i < sums.length; i++) sums[i] = sum += changes[i];
    return sums;
  }

  const key = (of) => [of.run, of.rank, of.device, of.restart, of.axis, of.parts].join("|");
  function storeOf(of) {
    const name = key(of);
    if (!stores.has(name)) {
      stores.set(name, { whole: null, detail: null, busy: false });
      if (stores.size > KEPT) stores.delete(stores.keys().next().value);
    }
    return stores.get(name);
  }

  function url(track, edges) {
    const { of } = track, query = new URLSearchParams({ run: of.run, rank: of.rank, device: of.device, restart: of.restart, axis: of.axis });
    query.set("w", String(Math.max(Math.round(edges ? track.place.plot.width : Math.min(track.place.plot.width, 1400)), 1)));
    if (edges) { query.set("a", edges[0]); query.set("b", edges[1]); }
    if (of.parts) query.set("parts", "1");
    return `/api/timeline?${query}`;
  }

  // One request at a time: while the hand moves, the next begins when the last has come.
  async function ask(track, isWhole) {
    const its = track.data, edges = isWhole ? null : [T.a, T.b];
    if (its.busy) { its.again = its.again === true || isWhole ? true : "view"; return; }
    its.busy = true;
    try {
      const answer = await fetch(url(track, edges) + (T.at === null ? "" : `&at=${T.at}`));
      if (!answer.ok) throw new Error(String(answer.status));
      const data = columns(await answer.arrayBuffer());
      learn(its, data.instants);
      for (const [at, x] of data.comments || []) S.place(at, x);
      const isFirst = isWhole && !its.whole;
      if (isWhole) Object.assign(its, { whole: data, detail: null }); else Object.assign(its, { detail: data, span: edges[1] - edges[0] });
      its.url = url(track, edges);
      if (isFirst) openOnTraining(track);
      revealChosen(track);
      S.tell("columns", { phases: new Set(data["phase.kind"]) });
    } catch {
      // The banner says what is wrong with the server; what is drawn stays.
    } finally {
      its.busy = false;
      const again = its.again;
      its.again = null;
      if (again === true || again && url(track, T.a === null ? null : [T.a, T.b]) !== its.url) ask(track, again === true || T.a === null);
      redraw();
    }
  }

  // A run opens at its first step, unless the link names a zoom or an instant before that; what lies before folds into a button.
  function openOnTraining(track) {
    const { training } = track.data.whole, x = S.positionOf(T.at);
    if (training && T.a === null && (x === null || x >= training[0])) look(track, training[0], training[1]);
  }
  function foldedStart(track) {
    const { figure, data, place } = track, button = figure.querySelector(".track-break"), { training, folded, extent: [begin] } = data.whole;
    const isFolded = Boolean(training) && T.a !== null && Math.abs(T.a - training[0]) < 1e-6 * (training[1] - begin);
    if (button.hidden === !isFolded) return;
    button.hidden = !isFolded;
    if (!isFolded) return;
    button.textContent = `◂ ${folded} before${place.plot.width > 400 ? " the first step shown" : ""}`;
    // Over the part of the small picture that it stands for, where it hides no curve in view.
    button.style.left = `${place.map.left + 2}px`;
    button.style.top = `${place.map.top + (place.map.height - button.offsetHeight) / 2}px`;
  }

  function learn(its, instants) {
    for (const [at, [x, words, levels]] of Object.entries(instants)) { S.place(Number(at), x); its.rest = { at: Number(at), words, levels }; }
  }
  function revealChosen(track) {
    // An answer about the view may come before the one that knows where the instant is.
    const x = S.positionOf(T.at);
    if (!isToReveal || x === null) return;
    isToReveal = false;
    reveal(track, x);
  }

  // Where the chosen instant is, and its exact levels. The columns in view stay as they are: with them an answer
  // has 112 kB, and takes 75 ms at five million events.
  async function askInstant(track) {
    const { of, data: its } = track, at = T.at;
    if (its.asksInstant) return;
    its.asksInstant = true;
    try {
      const query = new URLSearchParams({ run: of.run, rank: of.rank, device: of.device, restart: of.restart, axis: of.axis, at: String(at), only: "instant" });
      const answer = await fetch(`/api/timeline?${query}`);
      if (!answer.ok) throw new Error(String(answer.status));
      learn(its, columns(await answer.arrayBuffer()).instants);
      revealChosen(track);
    } catch {
      // As above.
    } finally {
      its.asksInstant = false;
      if (T.at === at) isToReveal = false;
      else if (T.at !== null) askInstant(track);
      redraw();
    }
  }

  function refine() {
    for (const track of tracks.values()) {
      // The first size of a picture is reported while its first columns are on their way.
      if (!track.data.whole) { if (!track.data.busy) ask(track, true); }
      else {
        if (T.a !== null && url(track, [T.a, T.b]) !== track.data.url) ask(track, false);
        if (T.at !== null && track.data.rest?.at !== T.at && !window.vramscope.instantParts.isBusy()) askInstant(track);
      }
      break;
    }
  }

  // --------------------------------------------------------------------------------- view
  function extent(track) { return track.data.whole ? track.data.whole.extent : [0, 1]; }
  const isEvents = (track) => track.of.axis === "events";

  function view(track) {
    const [first, last] = extent(track), a = T.a === null ? first : T.a, b = T.b === null ? last : T.b;
    const box = track.place.plot, top = ceiling(track), isBands = track.figure.classList.contains("bands");
    const lo = isBands && T.lo !== null ? T.lo : 0, hi = isBands && T.hi !== null ? T.hi : top;
    return {
      a, b, lo, hi, axis: track.of.axis, times: track.data.whole?.times || [], shown: track.shown,
      px: (x) => box.left + (x - a) / (b - a) * box.width,
      py: (y) => box.top + box.height - (y - lo) / (hi - lo) * box.height,
      data: (px) => a + (px - box.left) / box.width * (b - a),
    };
  }

  // The scale of bytes is that of the whole run, so that heights stay comparable while one moves.
  function ceiling(track) {
    const { whole } = track.data;
    if (!whole) return 1;
    let top = Math.max(...track.shown.filter((name) => name in whole.top).map((name) => whole.top[name]), 1);
    if (track.shown.includes("device_used")) for (const value of whole["device_used.y"]) top = Math.max(top, value);
    if (track.shown.includes("capacity")) top = Math.max(top, whole.capacity);
    return top * 1.06;
  }

  function look(track, a, b, heights) {
    const [first, last] = extent(track), least = isEvents(track) ? LEAST_EVENTS : LEAST_S;
    let span = Math.max(b - a, Math.min(least, last - first));
    const isWhole = span >= (last - first) * 0.9995;
    a = Math.min(Math.max(a, first), last - span);
    S.look({ ...(isWhole ? { a: null, b: null } : { a, b: a + span }), ...heights });
    redraw();
    // Inside of what is known as finely, the answer that follows when the view rests is enough.
    if (!isKnown(track)) refine();
  }
  function isKnown(track) {
    const { detail, span } = track.data;
    return Boolean(detail) && T.a !== null && T.a >= detail.window[0] && T.b <= detail.window[1] && Math.abs(T.b - T.a - span) <= 1e-9 * span;
  }

  function reveal(track, x) {
    if (T.a === null || x >= T.a && x <= T.b) return;
    const half = (T.b - T.a) / 2;
    look(track, x - half, x + half);
  }

  function zoom(track, factor, at) {
    const { a, b } = view(track), x = at === undefined ? (a + b) / 2 : at;
    look(track, x - (x - a) * factor, x + (b - x) * factor);
  }
  function pan(track, share) {
    const { a, b } = view(track), by = (b - a) * share, [first, last] = extent(track);
    if (a + by < first) look(track, first, first + b - a);
    else if (b + by > last) look(track, last - (b - a), last);
    else look(track, a + by, b + by);
  }

  // ------------------------------------------------------------------------------ drawing
  let isDue = false;
  function redraw() {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(function () {
      isDue = false;
      for (const track of tracks.values()) paint(track);
    });
  }

  // The finest that is known for each part of the view.
  function parts(track, { a, b }) {
    const { whole, detail } = track.data;
    if (!detail || T.a === null) return [{ data: whole, a, b }];
    const [from, to] = [Math.max(detail.window[0], a), Math.min(detail.window[1], b)];
    if (to <= from) return [{ data: whole, a, b }];
    const found = [{ data: detail, a: from, b: to }];
    if (from > a) found.unshift({ data: whole, a, b: from });
    if (to < b) found.push({ data: whole, a: to, b });
    return found;
  }

  function finest(track, x) {
    const { whole, detail } = track.data;
    return detail && T.a !== null && x >= detail.window[0] && x <= detail.window[1] ? detail : whole;
  }

  function placed({ figure, of, data: { whole } }, width, height) {
    const rows = whole ? [whole["flag.x"], whole.comments] : [];
    return D.layout(width, height, !figure.classList.contains("strip-track"), of.parts ? CALLS_PX : 0, rows.map((each) => (each.length ? 1 : 0)));
  }

  function paint(track) {
    const { figure, data } = track, width = figure.clientWidth, height = figure.clientHeight;
    if (!data.whole || !width || !height) return;
    const began = performance.now();
    track.place = placed(track, width, height);
    const t = D.theme(data.whole.colors);
    scene(D.sharp(figure.querySelector(".track-plot"), width, height), track, t);
    small(track, width, t);
    foldedStart(track);
    over(track);
    track.paintMs = performance.now() - began;
    track.frames = (track.frames || 0) + 1;
    if (!figure.dataset.ready) figure.dataset.ready = "yes";
    window.vramscope.offerTimeline(track);
  }

  // The whole run changes less often than the part of it in view: its curve is kept as a picture.
  function small(track, width, t) {
    const { figure, place, data } = track, height = place.map.top + place.map.height + 3;
    const wanted = [data.whole, width, height, window.devicePixelRatio, t.ink3];
    if (!track.small || wanted.some((each, i) => each !== track.small.of[i])) {
      const canvas = document.createElement("canvas");
      D.mapBelow(D.sharp(canvas, width, height), place.map, data.whole, t);
      track.small = { canvas, of: wanted };
    }
    const context = D.sharp(figure.querySelector(".track-map"), width, height);
    context.save();
    context.setTransform(1, 0, 0, 1, 0, 0); // pixel by pixel
    context.drawImage(track.small.canvas, 0, 0);
    context.restore();
    D.mapOver(context, place.map, data.whole, view(track), t, marked());
  }

  // Everything but the small map and what follows the pointer; also for a file.
  function scene(context, track, t) {
    const { place, data } = track, now = view(track), isBands = track.figure.classList.contains("bands");
    context.font = `11.5px ${t.sans}`;
    if (track.of.parts) {
      D.begin(context, place.plot);
      D.areas(context, parts(track, now), now, t);
      context.restore();
    }
    const isFilled = isBands || track.of.parts;
    D.heights(context, place.plot, now, t, isFilled);
    D.begin(context, place.plot);
    if (track.shown.includes("capacity") && data.whole.capacity) D.level(context, place.plot, now.py(data.whole.capacity), t.quantity.capacity);
    D.curves(context, parts(track, now), now, t, isFilled);
    context.restore();
    context.font = `11.5px ${t.sans}`;
    const best = finest(track, (now.a + now.b) / 2);
    if (track.of.parts) D.calls(context, place.calls, place.plot, now, best, t);
    D.lanes(context, place.lane, place.plot, now, best, t);
    D.stepsOf(context, place, place.plot, now, best, t);
    D.positions(context, place.plot, now, place.axis, t);
    D.doubts(context, place.plot, now, place, data.whole, t, isFilled);
    if (marked() === null) D.peak(context, place.plot, now, parts(track, now), t);
    track.flags = D.flags(context, place.plot, now, place.flags, best, t);
    track.comments = D.comments(context, place.plot, now, place.comments, data.whole.comments, t);
    cursor(context, track, now, t);
  }

  // Where the chosen instant is; while a slider moves, where its thumb is, whose instant only the server knows.
  const marked = () => T.scrubbed ?? S.positionOf(T.at);

  function cursor(context, track, now, t) {
    const x = marked();
    if (x === null || x < now.a || x > now.b) return;
    const { plot } = track.place, px = now.px(x);
    context.fillStyle = t.accent;
    context.fillRect(px - 0.75, plot.top - 4, 1.5, plot.height + 4);
    context.beginPath();
    context.moveTo(px - 5, plot.top - 5);
    context.lineTo(px + 5, plot.top - 5);
    context.lineTo(px, plot.top + 2);
    context.fill();
  }

  // ------------------------------------------------------------------- values at the pointer
  /** @returns {{y: number, low?: number, i?: number} | null} */
  function valueAt(track, name, x) {
    const data = finest(track, x), xs = data[`${name}.x`];
    if (name === "capacity") return { y: data.capacity };
    if (!xs || !xs.length) return null;
    if (name === "device_used") {
      // A sample says nothing of the time until the next one.
      const now = view(track), i = D.before(xs, x), near = [i, i + 1].filter((k) => k >= 0 && k < xs.length)
        .find((k) => Math.abs(now.px(xs[k]) - now.px(x)) <= NEAR_PX);
      return near === undefined ? null : { y: data["device_used.y"][near] };
    }
    const counted = countedAt(data, name, x);
    if (counted !== undefined) return counted;
    const i = Math.max(D.before(xs, x), 0);
    return { y: data[`${name}.y`][i], low: data[`${name}.low`] && data[`${name}.low`][i], i };
  }

  // Where no events were recorded, the peak of the step and the level at its end; undefined elsewhere.
  function countedAt(data, name, x) {
    const stretch = D.before(data["bare.from"] || [], x), i = D.before(data["counted.x"] || [], x);
    if (stretch < 0 || x >= data["bare.to"][stretch]) return undefined;
    if (i < 0 || x >= data["counted.end"][i] || name === "active") return null;
    return name === "reserved" ? { y: data["counted.reserved"][i] } : { y: data["counted.y"][i], low: data["counted.level"][i] };
  }

  // The parts of reserved bytes at the last drawn instant, from the top of the areas down.
  function partsAt(track, x) {
    const data = finest(track, x), names = track.of.parts ? Object.keys(data.colors.part).reverse() : [];
    return names.map((name) => [name, data[`part.${name}`][Math.max(D.before(data["part.x"], x), 0)]]);
  }

  function words(track, x) {
    if (isEvents(track)) return `instant ${Math.round(x).toLocaleString("en-US")}`;
    const now = view(track), [scale, unit] = D.unitOfTime(now);
    return `${D.number(x * scale, (now.b - now.a) * scale / 1000)}${unit}`;
  }
  function stepAt(track, x) {
    const data = finest(track, x), start = data["step.start"], i = D.before(start, x);
    return i >= 0 && x < data["step.end"][i] ? data["step.number"][i] : null;
  }
  function phaseAt(track, x) {
    const data = finest(track, x), i = D.before(data["phase.x"], x);
    return i >= 0 && i < data["phase.kind"].length ? track.data.whole.phases[data["phase.kind"][i]] || "" : "";
  }
  const TITLE = { allocated: "Allocated", active: "Active", reserved: "Reserved", device_used: "Device used" };

  /** @param {{y: number, low?: number}} value */
  const isRange = ({ low, y }) => low !== undefined && low !== y;
  function bytesOf(found) {
    if (!found) return "–";
    const { bytes } = window.vramscope;
    return isRange(found) ? `${bytes(found.low)} – ${bytes(found.y)}` : bytes(found.y);
  }

  function readout(track, x) {
    const chart = track.figure.closest(".chart"), { rest } = track.data;
    // At the chosen instant the exact levels are known, also where only extremes are drawn.
    const levels = x !== null && rest && rest.at === T.at && x === S.positionOf(T.at) ? rest.levels : {};
    for (const output of chart ? chart.querySelectorAll("[data-q]") : []) {
      const text = reading(track, x, output.dataset.q, levels);
      // The same text again would be another change of the document, in every frame.
      if (output.textContent !== text) output.textContent = text;
    }
  }

  function reading(track, x, q, levels) {
    if (x === null || x === undefined) return "";
    if (q === "position") return words(track, x);
    if (q in levels) return window.vramscope.bytes(levels[q]);
    const found = valueAt(track, q, x);
    return found ? (isRange(found) ? "≤ " : "") + window.vramscope.bytes(found.y) : "–";
  }

  // The crosshair, and the values beside it.
  function over(track) {
    const { figure, place } = track, its = pointer && pointer.track === track && pointer.inside ? pointer : null;
    const tip = figure.querySelector(".track-tip"), now = view(track), rest = marked();
    // An empty layer is not painted again: it would be copied to the screen with every frame.
    const context = its || track.hasOver ? D.sharp(figure.querySelector(".track-over"), figure.clientWidth, figure.clientHeight) : null;
    track.hasOver = Boolean(its);
    if (!its) { tip.hidden = true; readout(track, rest); return; }
    const { plot } = place, x = now.data(its.x), t = D.theme(track.data.whole.colors);
    if (its.box) {
      context.fillStyle = t.accent;
      context.globalAlpha = 0.18;
      const left = Math.min(its.box[0], its.x), top = its.box[2] ? Math.min(its.box[1], its.y) : plot.top;
      context.fillRect(left, top, Math.abs(its.x - its.box[0]), its.box[2] ? Math.abs(its.y - its.box[1]) : plot.height);
      context.globalAlpha = 1;
    }
    context.fillStyle = t.ink3;
    context.fillRect(Math.round(its.x), plot.top, 1, plot.height);
    for (const name of ["reserved", "active", "allocated"]) {
      const found = track.shown.includes(name) && valueAt(track, name, x);
      if (!found) continue;
      context.beginPath();
      context.arc(its.x, now.py(found.y), 3, 0, 7);
      context.fillStyle = t.surface;
      context.fill();
      context.strokeStyle = name === "reserved" ? t.reserved : t.ink;
      context.lineWidth = 1.5;
      context.stroke();
    }
    readout(track, x);
    if (figure.classList.contains("bands")) { tip.hidden = true; return; }
    tell(track, tip, its, x);
  }

  // The calls of the driver under the pointer.
  function callsAt(track, data, px) {
    const xs = Array.from(data["driver.x"] || []), now = view(track), i = xs.findIndex((x) => Math.abs(now.px(x) - px) < 5);
    if (i < 0) return [];
    const values = [["Reserved by the driver", data["driver.came"][i]], ["Given back", data["driver.went"][i]]];
    return values.filter(([, n]) => n).map(([name, n]) => ["tip-value", name, window.vramscope.bytes(n)])
      .concat(data["driver.retry"][i] ? [["tip-when", "cache released for a request"]] : []);
  }

  function tell(track, tip, its, x) {
    const data = finest(track, x), step = stepAt(track, x), where = [words(track, x), step === null ? "" : `step ${step}`, phaseAt(track, x)].filter(Boolean).join(" · ");
    const lines = [["tip-when", where]];
    for (const name of track.shown) {
      const found = TITLE[name] && valueAt(track, name, x);
      if (found) lines.push(["tip-value", TITLE[name], bytesOf(found)]);
    }
    const parts = partsAt(track, x);
    const isSplit = parts.some(([name, value]) => name === "inactive_split" && value);
    if (parts.length && data.envelope) lines.push(["tip-when", isSplit ? "where it was most fragmented:" : "where most was allocated:"]);
    for (const [name, value] of parts) lines.push(["tip-value", name.replace("_", " "), window.vramscope.bytes(value)]);
    lines.push(...callsAt(track, data, its.x));
    const flag = (track.flags || []).find((each) => Math.abs(each.x - its.x) < 8);
    for (const name of flag ? [...new Set(flag.names)].slice(0, 4) : []) {
      const same = flag.names.filter((each) => each === name).length;
      lines.push(["tip-when", same > 1 ? `${same} × ${name}` : name]);
    }
    const { px } = view(track), near = (from, to) => its.x >= px(from) - 6 && its.x <= px(to) + 6;
    for (const [, , text] of (track.data.whole.notes || []).filter(([from, to]) => near(from, to)).slice(0, 3)) lines.push(["tip-when", text]);
    const comment = commentAt(track, its.x, its.y);
    if (comment) lines.push(["tip-when", comment.text.slice(0, 200)]);
    const said = JSON.stringify(lines);
    if (tip.said !== said) tip.replaceChildren(...lines.map(function ([kind, name, value]) {
      const line = document.createElement("div");
      line.className = kind;
      line.append(...[name, value].filter((text) => text !== undefined).map((text) => Object.assign(document.createElement("span"), { textContent: text })));
      return line;
    }));
    tip.hidden = false;
    // Its size takes a layout, its place takes none.
    if (tip.said !== said) Object.assign(tip, { said, size: [tip.offsetWidth, tip.offsetHeight] });
    const [wide, tall] = tip.size, { clientWidth, clientHeight } = track.figure, left = its.x + 14 + wide > clientWidth ? its.x - 14 - wide : its.x + 14;
    tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(2, Math.min(its.y - 10, clientHeight - tall - 4))}px)`;
  }

  // ------------------------------------------------------------------------------- pointer
  const trackOf = (target) => { const figure = target && target.closest && target.closest(".track"); return figure && tracks.get(figure); };
  const local = (track, event) => { const box = track.figure.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  const within = ({ left, top, width, height }, x, y, more) => x >= left && x <= left + width && y >= top - (more || 0) && y <= top + height + (more || 0);

  const commentAt = (track, x, y) => (track.comments || []).find((each) => Math.abs(each.x - x) < 8 && Math.abs(each.y - y) < 9);

  // The drawn point nearest to the pointer: a click on the tip of a spike selects the spike, not its foot.
  function nearest(track, px, py) {
    const now = view(track), x = now.data(px), data = finest(track, x), xs = data["allocated.x"], ys = data["allocated.y"];
    const low = Math.max(0, D.before(xs, now.data(px - NEAR_PX))), high = D.before(xs, now.data(px + NEAR_PX));
    let best = Math.max(0, D.before(xs, x)), least = Infinity;
    for (let i = low; i <= high; i++) {
      const away = now.px(xs[i]) - px;
      if (Math.abs(away) > NEAR_PX) continue;
      const distance = away ** 2 + (now.py(ys[i]) - py) ** 2;
      if (distance < least) { least = distance; best = i; }
    }
    return { at: data["allocated.i"][best], x: xs[best] };
  }

  // The page learns the instant after the frame that shows it: what Dash does with it takes longer than a frame.
  let isTelling = false;
  function tellPage(track) {
    if (!track.stores.at || isTelling || track.known === T.at) return;
    isTelling = true;
    requestAnimationFrame(() => setTimeout(function () {
      isTelling = false;
      track.known = T.at;
      if (tracks.has(track.figure)) dash_clientside.set_props(track.stores.at, { data: T.at });
    }));
  }

  function chosen(track, at, x) {
    S.choose(at, x);
    tellPage(track);
    // A double-click shows the whole run, and opens nothing.
    clearTimeout(opening);
    opening = setTimeout(() => window.vramscope.inspect("i"), DOUBLE_MS);
  }

  addEventListener("scroll", () => { pageScrolled = performance.now(); }, { passive: true });
  document.addEventListener("wheel", function (event) {
    const track = trackOf(event.target);
    if (!track || !track.data.whole) return;
    // A reader who scrolls the page is not stopped by a chart that comes under the pointer.
    if (performance.now() - pageScrolled < 250 && !event.ctrlKey) return;
    const [px] = local(track, event), now = view(track), along = Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : event.shiftKey ? event.deltaY : 0;
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 20 : 1;
    if (along) pan(track, along * unit / track.place.plot.width);
    else zoom(track, Math.exp(Math.max(-60, Math.min(60, event.deltaY * unit)) / 180), now.data(Math.min(Math.max(px, track.place.plot.left), track.place.plot.left + track.place.plot.width)));
  }, { passive: false });

  let held = null, opening = null;
  document.addEventListener("pointerdown", function (event) {
    const track = event.button === 0 && !(event.target instanceof HTMLButtonElement) ? trackOf(event.target) : null;
    if (!track || !track.data.whole) return;
    const [x, y] = local(track, event), now = view(track), { map, plot, marks } = track.place;
    if (within(map, x, y, 3)) held = { track, kind: "map", x, span: [now.a, now.b], isInside: inView(track, x) };
    else if (within({ ...plot, top: marks, height: track.figure.clientHeight - marks }, x, y)) held = { track, kind: event.shiftKey ? "box" : "pan", x, y, span: [now.a, now.b], id: event.pointerId };
    if (!held) return;
    track.figure.setPointerCapture(event.pointerId);
    if (held.kind === "map" && !held.isInside) held.kind = "range";
  });
  const mapX = (track, px) => { const [first, last] = extent(track), { map } = track.place; return first + (px - map.left) / map.width * (last - first); };
  const inView = (track, px) => { const now = view(track), x = mapX(track, px); return T.a !== null && x >= now.a && x <= now.b; };

  document.addEventListener("pointermove", function (event) {
    const track = held ? held.track : trackOf(event.target);
    if (!track || !track.data.whole) { if (pointer) { const last = pointer.track; pointer = null; if (tracks.has(last.figure)) over(last); } return; }
    const [x, y] = local(track, event);
    const { plot, marks } = track.place, inside = within({ ...plot, top: marks, height: plot.top + plot.height - marks }, x, y);
    pointer = { track, x, y, inside, box: held && held.kind === "box" ? [held.x, held.y, isTallBox(held, y)] : null };
    if (held) drag(x);
    hover(track);
  });
  // Once a frame, and not where the frame draws everything.
  let isHovered = false;
  function hover(track) {
    if (isHovered || isDue) return;
    isHovered = true;
    requestAnimationFrame(() => { isHovered = false; if (!isDue && tracks.has(track.figure) && pointer) over(track); });
  }
  const isTallBox = (from, y) => from.track.figure.classList.contains("bands") && Math.abs(y - from.y) > 12;

  function drag(x) {
    const { track, kind, span } = held, { plot } = track.place;
    if (Math.abs(x - held.x) > CLICK_PX) held.isMoved = true;
    if (!held.isMoved) return;
    if (kind === "pan") {
      track.figure.classList.add("is-panned");
      const by = (held.x - x) / plot.width * (span[1] - span[0]), [first, last] = extent(track);
      const a = Math.min(Math.max(span[0] + by, first), last - (span[1] - span[0]));
      look(track, a, a + span[1] - span[0]);
    } else if (kind === "map") {
      const by = mapX(track, x) - mapX(track, held.x);
      look(track, span[0] + by, span[1] + by);
    } else if (kind === "range") {
      const edges = [mapX(track, held.x), mapX(track, x)].sort((a, b) => a - b);
      look(track, edges[0], edges[1]);
    }
  }

  document.addEventListener("pointerup", function (event) {
    const from = held;
    held = null;
    if (!from) return;
    const { track } = from, [x, y] = local(track, event);
    track.figure.classList.remove("is-panned");
    if (pointer) pointer.box = null;
    if (from.isMoved && from.kind === "box") {
      const now = view(track), edges = [now.data(from.x), now.data(x)].sort((a, b) => a - b);
      if (isTallBox(from, y)) {
        const byte = (py) => now.lo + (track.place.plot.top + track.place.plot.height - py) / track.place.plot.height * (now.hi - now.lo);
        const [lo, hi] = [byte(from.y), byte(y)].sort((a, b) => a - b).map((edge) => Math.max(edge, 0));
        look(track, edges[0], edges[1], { lo, hi });
      } else look(track, edges[0], edges[1]);
    } else if (!from.isMoved && from.kind === "range") {
      const now = view(track), half = (now.b - now.a) / 2, x0 = mapX(track, x);
      if (T.a !== null) look(track, x0 - half, x0 + half);
    } else if (!from.isMoved && y > track.place.plot.top + track.place.plot.height && stepAt(track, view(track).data(x)) !== null) {
      window.vramscope.inspect(`p${stepAt(track, view(track).data(x))}`);
    } else if (!from.isMoved && commentAt(track, x, y)) {
      const { at } = commentAt(track, x, y);
      chosen(track, at, S.positionOf(at));
    } else if (!from.isMoved && (from.kind === "pan" || from.kind === "box") && !track.figure.classList.contains("bands")) {
      const { at, x: position } = nearest(track, x, y);
      chosen(track, Number(at), position);
    } else if (!from.isMoved && from.kind === "pan") {
      const { at, x: position } = nearest(track, x, y);
      S.choose(Number(at), position);
    }
    over(track);
    if (from.isMoved) S.rest();
  });
  document.addEventListener("dblclick", function (event) {
    const track = trackOf(event.target);
    clearTimeout(opening);
    if (track) whole(track);
  });
  document.addEventListener("click", function (event) {
    const track = event.target instanceof Element && event.target.matches(".track-break") ? trackOf(event.target) : null;
    if (track) whole(track);
  });
  function whole(track) {
    const [first, last] = extent(track);
    look(track, first, last, { lo: null, hi: null });
  }

  // ------------------------------------------------------------------------------ keyboard
  const first = () => tracks.values().next().value;
  // Keys zoom at the pointer; without one at the chosen instant, where that is in view.
  function at(track) {
    const now = view(track), x = pointer && pointer.track === track && pointer.inside ? now.data(pointer.x) : marked();
    return x === null || x < now.a || x > now.b ? undefined : x;
  }
  const keys = {
    zoom: (factor) => { const track = first(); if (track && track.data.whole) zoom(track, factor, at(track)); },
    pan: (share) => { const track = first(); if (track && track.data.whole) pan(track, share); },
    whole: () => { const track = first(); if (track && track.data.whole) whole(track); },
  };
  document.addEventListener("keydown", function (event) {
    const track = tracks.get(event.target);
    if (!track || !track.data.whole || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Enter") { window.vramscope.inspect("i"); event.preventDefault(); }
    if (!step) return;
    event.preventDefault();
    const now = view(track), x = S.positionOf(T.at) ?? (now.a + now.b) / 2, data = finest(track, x), xs = data["allocated.x"];
    // To the next drawn point that differs by a pixel: a press is always seen.
    let i = Math.max(D.before(xs, x), 0);
    do i += step; while (i > 0 && i < xs.length - 1 && Math.abs(now.px(xs[i]) - now.px(x)) < 1);
    i = Math.max(0, Math.min(xs.length - 1, i));
    S.choose(Number(data["allocated.i"][i]), xs[i]);
    reveal(track, xs[i]);
    redraw();
    tellPage(track);
  });

  // ---------------------------------------------------------------------------- life cycle
  function attach(figure) {
    const of = JSON.parse(figure.dataset.of), track = { figure, of, stores: JSON.parse(figure.dataset.stores), data: storeOf(of), shown: of.shown };
    tracks.set(figure, track);
    window.vramscope.links.shows(of);
    S.read(of.axis);
    track.place = placed(track, figure.clientWidth || 600, figure.clientHeight || 120);
    new ResizeObserver(() => { redraw(); refine(); S.tell("view"); }).observe(figure);
    if (track.data.whole) { redraw(); refine(); } else ask(track, true).then(refine);
  }
  function attachAll() {
    for (const figure of tracks.keys()) if (!figure.isConnected) { tracks.delete(figure); pointer = null; held = null; }
    for (const figure of document.querySelectorAll("figure.track")) {
      const known = tracks.get(figure);
      if (known && known.figure.dataset.of === JSON.stringify(known.of)) continue;
      if (known && JSON.stringify(JSON.parse(figure.dataset.of)) === JSON.stringify(known.of)) continue;
      attach(figure);
    }
  }
  let queued = false;
  new MutationObserver(function () {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => { queued = false; attachAll(); });
  }).observe(document.documentElement, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-of"] });
  new MutationObserver(redraw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });

  const none = () => window.dash_clientside.no_update;
  // A page was laid out: it may show another zoom or instant of the same recording.
  function timelineEntered(address) {
    S.scrub(null);
    window.vramscope.links.laidOutAt(address && address.at !== null && address.at !== undefined ? String(address.at) : "");
    const track = first();
    if (!track || !track.figure.isConnected) return none();
    const before = `${T.a} ${T.b} ${T.at}`;
    S.read(track.of.axis);
    if (`${T.a} ${T.b} ${T.at}` === before) return none();
    redraw();
    refine();
    S.tell("view");
    return none();
  }

  // A run that grows: the whole again, at once where the last time was long enough ago.
  const GROWS_MS = 900;
  let grows = null, grown = -GROWS_MS;
  function timelineGrows() {
    const rest = tracks.size && first().data.whole ? Math.max(GROWS_MS - (performance.now() - grown), 0) : 0;
    if (!grows) grows = setTimeout(function () { grows = null; grown = performance.now(); S.tell("grows"); const track = first(); if (track) ask(track, true).then(refine); }, rest);
    return none();
  }
  function instantChosen(instant) {
    if (instant === null || instant === undefined) return none();
    const track = first();
    S.scrub(null);
    // An address names its instant and its zoom: the zoom stays, wherever the instant lies.
    if (String(instant) !== new URLSearchParams(location.search).get("at")) isToReveal = true;
    if (track) track.known = instant;
    S.choose(instant);
    if (!track) return none();
    revealChosen(track);
    refine();
    return none();
  }
  function legendShown(names) {
    const track = first();
    if (track && names) { track.shown = names; redraw(); S.tell("view"); }
    return none();
  }
  S.on("view rests", refine);
  S.on(["instant", "scrub"], redraw);
  // An instant picked in a table or the inspector is news to the page; one that the page chose keeps the zoom.
  S.on("instant", function () {
    const unaware = [...tracks.values()].filter((track) => track.known !== T.at);
    unaware.forEach(tellPage);
    if (unaware.length && T.at !== null && S.positionOf(T.at) === null) { isToReveal = true; refine(); }
  });

  // For a picture under the axes, and for whoever looks at what is drawn.
  function boxOf(figure) {
    const track = tracks.get(figure);
    if (!track || !track.data.whole) return null;
    const { plot } = track.place, { a, b, lo, hi } = view(track);
    return { left: plot.left, top: plot.top, width: Math.round(plot.width), height: Math.round(plot.height), a, b, lo, hi };
  }
  function drawn(name) {
    const track = first();
    if (!track || !track.data.whole) return null;
    const now = view(track), data = finest(track, (now.a + now.b) / 2), [xs, ys] = `part.${name}` in data ? ["part.x", `part.${name}`] : [`${name}.x`, `${name}.y`];
    const x = Array.from(data[xs]), y = Array.from(data[ys]);
    const inside = x.map((each, i) => i).filter((i) => x[i] >= now.a && x[i] <= now.b);
    return { x: inside.map((i) => x[i]), y: inside.map((i) => y[i]), a: now.a, b: now.b, at: T.at, isFine: T.a === null ? !track.data.busy : Boolean(track.data.detail) && url(track, [T.a, T.b]) === track.data.url, isEnvelope: Boolean(data[`${name}.low`]), paintMs: track.paintMs, frames: track.frames };
  }

  const frames = () => first()?.frames ?? 0, comments = () => first()?.comments ?? [];

  // What is drawn in view, as numbers: a level holds to the next row of its series.
  function rows(track) {
    const { a, b } = view(track), data = finest(track, (a + b) / 2), parts = Object.keys(data.colors.part);
    const series = track.of.parts ? parts.map((name) => [name, "part.x", `part.${name}`]) : track.shown.map((name) => [name, `${name}.x`, `${name}.y`]);
    const found = [["series", isEvents(track) ? "instant" : "seconds", "bytes"]];
    for (const [name, x, y] of series) for (const [i, at] of [...data[x] || []].entries()) if (at >= a && at <= b) found.push([name, at, data[y][i]]);
    return found;
  }

  const shown = () => (first() && first().data.whole ? first().data.whole : null);
  window.vramscope = Object.assign(window.vramscope || {}, {
    timeline: {
      keys, boxOf, scene, rows, frames, comments, drawn, redraw, columns,
      phaseName: (kind) => (shown() ? shown().phases[kind] : ""),
      whole: () => (shown() ? shown().extent : [null, null]),
      look: (a, b, lo, hi) => { if (first()) look(first(), a, b, hi === undefined ? {} : { lo, hi }); },
      revealNext: (isIt) => { isToReveal = isIt; },
      // Choose an instant on a page that follows it; returns whether the page in view does.
      goTo: (at) => { const isFollowed = Boolean(first()?.stores.at); if (isFollowed) S.choose(at); return isFollowed; },
      // An answer that was requested for another picture knows the instant too.
      learn: (instants) => { if (first()) { learn(first().data, instants); revealChosen(first()); redraw(); } },
    },
  });
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.vramscope = Object.assign({}, window.dash_clientside.vramscope, { timelineGrows, timelineEntered, instantChosen, legendShown });
})();
