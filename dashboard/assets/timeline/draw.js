// The drawing of the timeline on a canvas: axes, curves or their envelope, phases, steps, marks, the part in view.
(function () {
  const LEFT = 72, RIGHT = 14, GAP = 8, TICK = 20, LABELS = 15, ROW = 14;
  /** @type {[number, string][]} */
  const UNITS = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Index of the last value at or before x; −1 before the first.
  function before(xs, x) {
    let low = 0, high = xs.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  /** @returns {[number, string]} */
  const unitOf = (bytes) => UNITS.find(([scale]) => bytes >= 2 * scale) || UNITS[3];

  // Even ticks: 1, 2 or 5 times a power of the base, at most one per `room` pixels.
  function spacing(span, length, room, least) {
    const wanted = span * room / Math.max(length, 1);
    let power = 10 ** Math.floor(Math.log10(Math.max(wanted, 1e-12)));
    for (;;) {
      for (const factor of [1, 2, 5]) {
        if (factor * power >= wanted && factor * power >= (least || 0)) return factor * power;
      }
      power *= 10;
    }
  }

  function ticks(low, high, step) {
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
    return found;
  }

  const FORMATS = Array.from({ length: 10 }, (_, digits) => new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  function number(value, step) {
    const digits = Math.max(0, Math.min(9, -Math.floor(Math.log10(step) + 1e-9)));
    return FORMATS[digits].format(Number(value.toFixed(digits)));
  }

  // Where everything lies, in pixels of the page. Marks and comments, where there are any, have a row above the curves.
  function layout(width, height, isTall, calls, [flags = 0, comments = 0]) {
    const map = { left: LEFT, top: 4, width: width - LEFT - RIGHT, height: isTall ? 24 : 16 };
    const lane = isTall ? 11 : 8, end = map.top + map.height;
    const top = end + (flags + comments) * ROW + GAP, bottom = height - TICK - LABELS - lane - 4 - calls;
    return {
      map, marks: end + 2, flags: end + 9, comments: end + 9 + flags * ROW,
      plot: { left: LEFT, top, width: width - LEFT - RIGHT, height: Math.max(bottom - top, 10) },
      calls: { top: bottom + 4, height: calls - 3 },
      lane: { top: bottom + 4 + calls, height: lane }, labels: bottom + 4 + lane + calls, axis: height - TICK,
    };
  }

  // Asked of the style sheet again only where the theme changes: a dozen questions in every frame took 0.4 ms.
  let asked = null, look = null;
  function theme(colors) {
    if (asked !== document.documentElement.dataset.theme) {
      asked = document.documentElement.dataset.theme;
      look = {
        ink: css("--ink"), ink2: css("--ink-2"), ink3: css("--ink-3"), grid: css("--grid"), line: css("--line-strong"),
        fill: css("--allocated-fill"), reserved: css("--reserved-line"), accent: css("--accent"), surface: css("--surface"),
        bad: css("--bad"), warn: css("--warn"), sans: css("--sans"),
      };
    }
    return { ...look, ...colors };
  }

  // An empty canvas in the pixels of the screen.
  function sharp(canvas, width, height) {
    const ratio = window.devicePixelRatio || 1, w = Math.round(width * ratio), h = Math.round(height * ratio);
    if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  }

  function begin(context, box) {
    context.save();
    context.beginPath();
    context.rect(box.left, box.top, box.width, box.height);
    context.clip();
  }

  // A step function: each value holds to the next position.
  function steps(context, xs, ys, from, to, px, py) {
    if (to <= from) return;
    context.moveTo(px(xs[from]), py(ys[from]));
    for (let i = from + 1; i < to; i++) {
      const x = px(xs[i]);
      context.lineTo(x, py(ys[i - 1]));
      context.lineTo(x, py(ys[i]));
    }
  }

  // The least and greatest level in each column of pixels, as runs of equal columns: [left, right, least, greatest].
  function levels(xs, ys, from, to, a, b, px, wide) {
    const found = [], first = Math.max(a, xs[from]), last = Math.min(b, xs[to - 1]);
    const zero = px(first), scale = (px(b) - px(a)) / (b - a), right = Math.ceil(px(last) / wide);
    let i = from, level = ys[from], run = null;
    for (let column = Math.floor(zero / wide); column < right; column++) {
      const end = first + ((column + 1) * wide - zero) / scale;
      let low = level, high = level;
      for (; i < to && xs[i] < end; i++) {
        level = ys[i];
        if (level < low) low = level;
        if (level > high) high = level;
      }
      if (run && run[2] === low && run[3] === high) run[1] += wide;
      else found.push(run = [column * wide, (column + 1) * wide, low, high]);
    }
    return found;
  }

  // Dashes for what is painted by columns: a diagonal is a dash of a level line and of an upright one.
  const dashes = new Map();
  function dashed(context, color) {
    if (!dashes.has(color)) {
      const tile = Object.assign(document.createElement("canvas"), { width: 4, height: 4 }), ink = tile.getContext("2d");
      ink.fillStyle = color;
      for (let i = 0; i < 16; i++) if ((i + (i >> 2)) % 4 < 2) ink.fillRect(i % 4, i >> 2, 1, 1);
      dashes.set(color, context.createPattern(tile, "repeat"));
    }
    return dashes.get(color);
  }

  // The same picture from upright rectangles. Where several points share a pixel this takes 2.5 ms of the processor
  // for 4,371 points of each curve; their paths, filled and stroked, took 14, most of a frame.
  function bars(context, found, look, py) {
    const half = look.width / 2, more = (look.width - 1) / 2, foot = py(0);
    if (look.fill) {
      context.fillStyle = look.fill;
      for (const [left, right, , high] of found) context.fillRect(left, py(high), right - left, foot - py(high));
    }
    context.fillStyle = look.dash ? dashed(context, look.color) : look.color;
    for (const [left, right, low, high] of found) context.fillRect(left - more, py(high) - half, right - left + 2 * more, py(low) - py(high) + look.width);
  }

  function curve(context, data, name, look, a, b, px, py) {
    const xs = data[`${name}.x`], ys = data[`${name}.y`], low = data[`${name}.low`];
    if (!xs || !xs.length) return;
    const from = Math.max(before(xs, a), 0), to = Math.min(before(xs, b) + 2, xs.length);
    // A file of vectors has no pixels, and gets the paths.
    const wide = context.getTransform ? 1 / context.getTransform().a : 0;
    if (wide && !low && (to - from) * wide > px(b) - px(a)) {
      bars(context, levels(xs, ys, from, to, a, b, px, wide), look, py);
      return;
    }
    if (look.fill) {
      context.beginPath();
      steps(context, xs, ys, from, to, px, py);
      if (low) {
        for (let i = to - 1; i > from; i--) {
          context.lineTo(px(xs[i]), py(low[i - 1]));
          context.lineTo(px(xs[i - 1]), py(low[i - 1]));
        }
      } else {
        context.lineTo(px(xs[to - 1]), py(0));
        context.lineTo(px(xs[from]), py(0));
      }
      context.fillStyle = look.fill;
      context.fill();
    }
    context.beginPath();
    steps(context, xs, ys, from, to, px, py);
    context.strokeStyle = look.color;
    context.lineWidth = look.width;
    context.setLineDash(look.dash || []);
    context.stroke();
    context.setLineDash([]);
  }

  // What each part reaches up to, from the lowest to the highest: summed once, not in every frame.
  const summed = new WeakMap();
  function tops(data, names) {
    if (!summed.has(data)) {
      let base = new Float64Array(data["part.x"].length);
      summed.set(data, names.map((name) => [name, (base = base.map((bytes, i) => bytes + data[`part.${name}`][i]))]));
    }
    return summed.get(data);
  }

  // Where several points share a pixel: in full up to the least level of each column of pixels, and faint up to the
  // greatest, as the edge of a path would be. Five paths of 4,000 points took 20 ms of a frame to be painted.
  function stack(context, found, py) {
    const foot = py(0), faint = 0.45;
    for (const [left, right, low] of found) context.fillRect(left, py(low), right - left, foot - py(low));
    context.globalAlpha = faint;
    for (const [left, right, low, high] of found) if (high > low) context.fillRect(left, py(high), right - left, py(low) - py(high));
    context.globalAlpha = 1;
  }

  // The parts that have events: between them torch counted the steps alone, and a line through them is no level.
  function recorded(parts) {
    return parts.flatMap(function ({ data, a, b }) {
      const from = data["bare.from"] || [], to = data["bare.to"], found = [];
      let start = a;
      for (let i = 0; i < from.length && from[i] < b; i++) {
        if (from[i] > start) found.push({ data, a: start, b: from[i] });
        start = Math.max(start, to[i]);
      }
      return start < b ? [...found, { data, a: start, b }] : found;
    });
  }

  // Draws each part within its edges.
  function each(context, parts, { px }, draw) {
    for (const part of parts) {
      context.save();
      context.beginPath();
      context.rect(px(part.a), -10, Math.max(px(part.b) - px(part.a), 0), 10000);
      context.clip();
      draw(part);
      context.restore();
    }
  }

  // Of a step without events a bar at its peak, and a point where it ends at the level there.
  function stepwise(context, parts, view, t) {
    const { px, py, shown } = view;
    each(context, parts, view, function ({ data, a, b }) {
      const [start, end, level, peak, reserved] = ["x", "end", "level", "y", "reserved"].map((name) => data[`counted.${name}`] || []);
      for (let i = Math.max(before(start, a), 0); i < start.length && start[i] <= b; i++) {
        const x = px(start[i]), last = px(end[i]), wide = last - x;
        const bar = (y, color) => { context.fillStyle = color; context.fillRect(x, py(y) - 0.75, Math.max(wide - (wide > 4 ? 1.5 : 0), 1), 1.5); };
        if (shown.includes("reserved") && reserved[i] >= 0) bar(reserved[i], t.reserved);
        if (!shown.includes("allocated")) continue;
        if (peak[i] >= 0) bar(peak[i], t.ink);
        if (level[i] >= 0) context.fillRect(last - 2, py(level[i]) - 1.5, 3, 3);
      }
    });
  }

  // The parts of reserved bytes, one upon the other. The highest is painted first and down to zero, and the next over
  // it: half the points of areas that also have a lower edge.
  function areas(context, parts, view, t) {
    const { px, py } = view, wide = context.getTransform ? 1 / context.getTransform().a : 0;
    each(context, recorded(parts), view, function ({ data, a, b }) {
      const xs = data["part.x"], from = Math.max(before(xs, a), 0), to = Math.min(before(xs, b) + 2, xs.length);
      if (to <= from) return;
      const isDense = wide && (to - from) * wide > px(b) - px(a);
      for (const [name, top] of tops(data, Object.keys(t.part)).slice().reverse()) {
        context.fillStyle = t.part[name];
        if (isDense) { stack(context, levels(xs, top, from, to, a, b, px, wide), py); continue; }
        context.beginPath();
        steps(context, xs, top, from, to, px, py);
        context.lineTo(px(xs[to - 1]), py(0));
        context.lineTo(px(xs[from]), py(0));
        context.fill();
      }
    });
  }

  function level(context, box, y, color) {
    context.strokeStyle = color;
    context.lineWidth = 1.3;
    context.setLineDash([5, 3]);
    context.beginPath();
    context.moveTo(box.left, y);
    context.lineTo(box.left + box.width, y);
    context.stroke();
    context.setLineDash([]);
  }

  // Samples are known at their moments alone, so each is a point.
  function samples(context, data, color, a, b, px, py) {
    const xs = data["device_used.x"], ys = data["device_used.y"];
    context.fillStyle = color;
    for (let i = Math.max(before(xs, a), 0); i < xs.length && xs[i] <= b; i++) {
      if (xs[i] >= a) context.fillRect(px(xs[i]) - 1.5, py(ys[i]) - 1.5, 3, 3);
    }
  }

  const LOOK = {
    allocated: (t, bare) => ({ color: t.ink, width: 1.5, fill: bare ? null : t.fill }),
    active: (t) => ({ color: t.ink, width: 1.1, dash: [1.5, 2.5] }),
    reserved: (t, bare) => ({ color: t.reserved, width: 1.5, fill: bare ? null : "rgba(86,180,233,0.10)" }),
  };

  function curves(context, parts, view, t, bare) {
    const { px, py, shown } = view;
    each(context, recorded(parts), view, function ({ data, a, b }) {
      for (const name of ["reserved", "active", "allocated"]) {
        if (shown.includes(name)) curve(context, data, name, LOOK[name](t, bare), a, b, px, py);
      }
    });
    stepwise(context, parts, view, t);
    if (shown.includes("device_used")) each(context, parts, view, ({ data, a, b }) => samples(context, data, t.quantity.device_used, a, b, px, py));
  }

  // The highest level in view, which the page is about as long as no instant is chosen; or between two positions.
  function highest(parts, name = "allocated", least = -Infinity, most = Infinity) {
    let found = null;
    for (const part of parts) {
      const { data } = part, a = Math.max(part.a, least), b = Math.min(part.b, most);
      const xs = data[`${name}.x`] || [], ys = data[`${name}.y`];
      for (let i = Math.max(before(xs, a), 0); i < xs.length && xs[i] <= b; i++) {
        if (!found || ys[i] > found.y) found = { x: Math.max(xs[i], a), y: ys[i] };
      }
    }
    return found;
  }

  // Words with an edge of the surface's color, under which curves pass.
  function overCurves(context, text, [x, y], t, edge) {
    context.lineWidth = edge;
    context.lineJoin = "round";
    context.strokeStyle = t.surface;
    context.strokeText(text, x, y);
    context.fillText(text, x, y);
  }

  function peak(context, box, view, parts, t) {
    if (!view.shown.includes("allocated")) return;
    const found = highest(recorded(parts)), step = highest(parts, "counted");
    const top = step && (!found || step.y > found.y) ? step : found;
    if (!top || !top.y) return;
    const x = view.px(top.x), y = Math.max(view.py(top.y), box.top + 3);
    context.beginPath();
    context.arc(x, y, 3.5, 0, 7);
    context.fillStyle = t.surface;
    context.fill();
    context.strokeStyle = t.ink;
    context.lineWidth = 1.5;
    context.stroke();
    if (box.height < 150) return;
    const text = `highest ${window.vramscope.bytes(top.y)}`;
    context.font = `600 11.5px ${t.sans}`;
    const wide = context.measureText(text).width + 12, end = box.left + box.width;
    const isClear = (from, to) => from >= box.left && to <= end && highestBetween(view, parts, from, to) > y + 7;
    const isLeft = x + wide > end || !isClear(x + 9, x + wide) && isClear(x - wide, x - 9);
    context.textBaseline = "middle";
    context.textAlign = isLeft ? "right" : "left";
    context.fillStyle = t.ink;
    overCurves(context, text, [x + (isLeft ? -9 : 9), y], t, 4);
  }
  // The height in pixels of what is drawn highest between two of them.
  function highestBetween(view, parts, ...pixels) {
    const reached = ["allocated", "reserved"].filter((name) => view.shown.includes(name))
      .map((name) => highest(parts, name, ...pixels.map(view.data))?.y ?? 0);
    return view.py(Math.max(...reached, 0));
  }

  function heights(context, box, view, t, isOver) {
    const [scale, unit] = unitOf(view.hi), span = (view.hi - view.lo) / scale;
    const isNamed = (y) => y > box.top + 3, yOf = (value) => Math.round(view.py(value * scale)) + 0.5;
    const at = (step) => ticks(view.lo / scale, view.hi / scale, step);
    let step = spacing(span, box.height, 44, 0);
    // A scale with 0 alone says nothing: in a low picture the next closer ticks.
    if (at(step).filter((value) => isNamed(yOf(value))).length < 2) step = spacing(span, box.height, 22, 0);
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of at(step)) {
      const y = yOf(value);
      if (!isNamed(y)) continue;
      context.fillStyle = isOver ? t.ink : t.grid;
      context.globalAlpha = isOver ? 0.1 : 1;
      context.fillRect(box.left, y - 0.5, box.width, 1);
      context.globalAlpha = 1;
      context.fillStyle = t.ink3;
      context.fillText(`${number(value, step)} ${unit}`, box.left - 8, y);
    }
  }

  // The unit of an axis is that of its end, as in the words beside it, but no fraction of a minute (units.py).
  /** @returns {[number, string]} */
  function unitOfTime({ times, a, b }) {
    const [, unit, name] = times.find(([least, each]) => b >= least && (each <= 1 || b - a >= least)) || times.at(-1);
    return [1 / unit, ` ${name}`];
  }

  function positions(context, box, view, axis, t) {
    const isTime = view.axis !== "events", span = view.b - view.a;
    const [scale, unit] = isTime ? unitOfTime(view) : [1, ""];
    const step = spacing(span * scale, box.width, 110, isTime ? 0 : 1);
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const value of ticks(view.a * scale, view.b * scale, step)) {
      const x = Math.round(view.px(value / scale)) + 0.5, text = `${number(value, step)}${unit}`;
      context.fillStyle = t.line;
      context.fillRect(x - 0.5, axis, 1, 4);
      context.fillStyle = t.ink3;
      const half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(Math.max(x, half + 2), box.left + box.width + RIGHT - half - 1), axis + 6);
    }
  }

  function lanes(context, at, box, view, data, t) {
    const { px } = view, edges = data["phase.x"], kinds = data["phase.kind"];
    if (data["step.start"].length) { context.fillStyle = t.grid; context.fillRect(box.left, at.top, box.width, at.height); }
    for (let i = Math.max(before(edges, view.a), 0); i < kinds.length && edges[i] < view.b; i++) {
      const color = t.phase[kinds[i]];
      if (!color) continue;
      const x = Math.max(px(edges[i]), box.left), end = Math.min(px(edges[i + 1]), box.left + box.width);
      context.fillStyle = color;
      if (end > x) context.fillRect(x, at.top, Math.max(end - x, 0.6), at.height);
    }
  }

  // What the driver gave, up, and what it got back, down, from the middle of a lane; a retry is a wider sign.
  function calls(context, at, box, view, data, t) {
    const xs = data["driver.x"] || [], came = data["driver.came"], went = data["driver.went"], half = at.height / 2;
    const most = xs.reduce((top, _, i) => Math.max(top, came[i], went[i]), 1), middle = at.top + half;
    context.fillStyle = t.grid;
    context.fillRect(box.left, middle - 0.5, box.width, 1);
    for (let i = 0; i < xs.length; i++) {
      if (xs[i] < view.a || xs[i] > view.b) continue;
      const x = Math.round(view.px(xs[i])) - 1, tall = (n) => (n ? Math.max(2, half * Math.sqrt(n / most)) : 0);
      context.fillStyle = t.reserved;
      context.fillRect(x, middle - tall(came[i]), 3, tall(came[i]));
      context.fillStyle = t.ink3;
      context.fillRect(x, middle, 3, tall(went[i]));
      if (data["driver.retry"][i]) { context.fillStyle = t.warn; context.fillRect(x - 1, middle, 5, half); }
    }
  }

  // Borders where steps are wide enough, labels with even numbers at even distances.
  function stepsOf(context, at, box, view, data, t) {
    const { px } = view, start = data["step.start"], end = data["step.end"], numbers = data["step.number"];
    const near = [];
    for (let i = 0; i < start.length; i++) if (end[i] > view.a && start[i] < view.b) near.push(i);
    if (!near.length) return;
    const many = numbers[near.at(-1)] - numbers[near[0]] + 1, wide = box.width / Math.max(many, 1);
    context.fillStyle = t.line;
    context.globalAlpha = 0.55;
    if (wide >= 12) for (const i of near) if (start[i] > view.a) context.fillRect(Math.round(px(start[i])), box.top, 1, at.labels - box.top);
    context.globalAlpha = 1;
    const stride = spacing(many, box.width, 70, 1);
    context.fillStyle = t.ink2;
    context.textAlign = "center";
    context.textBaseline = "top";
    let free = -Infinity;
    for (const i of near) {
      if (numbers[i] % stride) continue;
      const x = px((Math.max(start[i], view.a) + Math.min(end[i], view.b)) / 2), text = `step ${numbers[i]}`;
      const half = context.measureText(text).width / 2;
      if (x - half < Math.max(box.left - 4, free) || x + half > box.left + box.width + RIGHT) continue;
      context.fillText(text, x, at.labels + 2);
      free = x + half + 8;
    }
  }

  const SIGN = { 6: ["×", "bad"], 8: ["▾", "ink3"], 100: ["▴", "warn"], 5: ["◆", "mark"], 7: ["○", "ink3"] };
  const GRAVITY = [7, 5, 100, 8, 6];

  // Four retries and the failure they could not prevent are not five failures: each name has its own number.
  function counted({ name, names }) {
    const same = names.filter((each) => each === name).length, others = names.length - same;
    return `${same > 1 ? `${same} × ` : ""}${name}${others ? ` + ${others} more` : ""}`;
  }

  // Marks that would touch become one with their number. A label is on the right of its mark, and on the left where it
  // would be cut.
  function flags(context, box, view, y, data, t) {
    const xs = data["flag.x"], kinds = data["flag.kind"], groups = [];
    for (let i = 0; i < xs.length; i++) {
      if (xs[i] < view.a || xs[i] > view.b) continue;
      const x = view.px(xs[i]), last = groups.at(-1);
      if (last && x - last.x < 14) {
        if (GRAVITY.indexOf(kinds[i]) > GRAVITY.indexOf(last.kind)) Object.assign(last, { kind: kinds[i], name: data.flags[i] });
        last.names.push(data.flags[i]);
      } else groups.push({ x, kind: kinds[i], name: data.flags[i], names: [data.flags[i]] });
    }
    for (const group of groups) group.words = counted(group);
    let free = box.left;
    context.textBaseline = "middle";
    groups.forEach(function (group, k) {
      const [sign, color] = SIGN[group.kind] || SIGN[5];
      context.fillStyle = color === "mark" ? "#8a75c9" : t[color];
      context.textAlign = "center";
      context.font = `700 15px ${t.sans}`;
      context.fillText(sign, group.x, y);
      context.globalAlpha = 0.5;
      context.fillRect(Math.round(group.x), y + 8, 1, box.top + box.height - y - 8);
      context.globalAlpha = 1;
      context.font = `11px ${t.sans}`;
      const text = group.words, wide = context.measureText(text).width + 4;
      const next = k + 1 < groups.length ? groups[k + 1].x - 8 : box.left + box.width;
      const isRight = group.x + 8 + wide <= next, isLeft = !isRight && group.x - 8 - wide >= free;
      context.fillStyle = t.ink2;
      context.textAlign = isRight ? "left" : "right";
      if (isRight || isLeft) context.fillText(text, group.x + (isRight ? 8 : -8), y);
      free = group.x + 8 + (isRight ? wide : 0);
    });
    return groups;
  }

  // What is doubtful or missing is hatched, with a bar on the axis; a moment of it is a dashed line with a sign.
  function doubts(context, box, view, at, data, t, isFilled) {
    const bare = isFilled ? [] : Array.from(data["bare.from"] || []);
    for (const [from, to] of data.notes || []) {
      if (to < view.a || from > view.b) continue;
      const x = Math.max(view.px(from), box.left), end = Math.min(view.px(to), box.left + box.width), wide = Math.max(end - x, 3);
      context.fillStyle = context.strokeStyle = t.warn;
      context.fillRect(Math.min(x, box.left + box.width - 3), at.axis - 3, wide, 3);
      context.lineWidth = 1;
      if (bare.includes(from)) continue; // the levels of its steps are drawn
      if (wide < 8) line(context, Math.round(x) + 0.5, box, t);
      else hatch(context, { left: x, top: box.top, width: wide, height: box.height });
    }
  }
  // Comments of the viewers, below the marks of the program; returns where they are.
  function comments(context, box, view, at, list, t) {
    const there = (list || []).filter(([, x]) => x !== null && x >= view.a && x <= view.b).map(([at, x, text]) => ({ at, x: view.px(x), y: at, text }));
    context.textBaseline = "middle";
    there.forEach(function ({ x, y, text }, k) {
      context.fillStyle = t.accent;
      context.globalAlpha = 0.5;
      context.fillRect(Math.round(x), y + 6, 1, box.top + box.height - y - 6);
      context.globalAlpha = 1;
      context.beginPath();
      context.roundRect(x - 7, y - 6, 14, 10, 3);
      context.moveTo(x - 3, y + 3);
      context.lineTo(x, y + 8);
      context.lineTo(x + 3, y + 3);
      context.fill();
      context.font = `11px ${t.sans}`;
      const short = text.split("\n")[0], words = short.length > 40 ? `${short.slice(0, 39)}…` : short, wide = context.measureText(words).width;
      const next = k + 1 < there.length ? there[k + 1].x - 12 : box.left + box.width;
      if (x + 12 + wide > next) return;
      context.fillStyle = t.ink2;
      context.textAlign = "left";
      context.fillText(words, x + 12, y - 1);
    });
    return there;
  }
  function line(context, x, box, t) {
    context.globalAlpha = 0.7;
    context.setLineDash([2, 3]);
    context.beginPath();
    context.moveTo(x, box.top + 14);
    context.lineTo(x, box.top + box.height);
    context.stroke();
    context.setLineDash([]);
    context.globalAlpha = 1;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = `700 11px ${t.sans}`;
    context.fillText("!", Math.min(Math.max(x, box.left + 4), box.left + box.width - 4), box.top + 8);
    context.font = `11.5px ${t.sans}`;
  }
  function hatch(context, box) {
    begin(context, box);
    context.globalAlpha = 0.35;
    context.beginPath();
    for (let x = box.left - box.height; x < box.left + box.width; x += 8) {
      context.moveTo(x, box.top + box.height);
      context.lineTo(x + box.height, box.top);
    }
    context.stroke();
    context.restore();
  }

  // The whole run in small.
  function mapBelow(context, box, data, t) {
    const [first, last] = data.extent, top = Math.max(data.top.allocated, 1);
    const px = (x) => box.left + (x - first) / (last - first) * box.width;
    const py = (y) => box.top + box.height - y / top * (box.height - 2);
    begin(context, { left: box.left, top: box.top, width: box.width, height: box.height });
    context.fillStyle = t.grid;
    context.fillRect(box.left, box.top, box.width, box.height);
    const parts = [{ data, a: first, b: last }];
    each(context, recorded(parts), { px }, ({ a, b }) => curve(context, data, "allocated", { color: t.ink3, width: 1, fill: t.fill }, a, b, px, py));
    stepwise(context, parts, { px, py, shown: ["allocated"] }, { ...t, ink: t.ink3 });
    for (let i = 0; i < data["flag.x"].length; i++) {
      context.fillStyle = data["flag.kind"][i] === 6 ? t.bad : t.ink3;
      if (data["flag.kind"][i] === 6) context.fillRect(px(data["flag.x"][i]) - 1, box.top, 2, box.height);
    }
    context.restore();
  }

  // Over it the part in view and the instant.
  function mapOver(context, box, data, view, t, at) {
    const [first, last] = data.extent, px = (x) => box.left + (x - first) / (last - first) * box.width;
    begin(context, { left: box.left, top: box.top, width: box.width, height: box.height });
    const a = px(view.a), b = Math.max(px(view.b), px(view.a) + 3);
    context.fillStyle = t.surface;
    context.globalAlpha = 0.66;
    context.fillRect(box.left, box.top, a - box.left, box.height);
    context.fillRect(b, box.top, box.left + box.width - b, box.height);
    context.globalAlpha = 1;
    context.restore();
    context.strokeStyle = t.accent;
    context.lineWidth = 1.5;
    context.strokeRect(a, box.top, b - a, box.height);
    if (at !== null) {
      context.fillStyle = t.accent;
      context.fillRect(px(at) - 0.75, box.top - 2, 1.5, box.height + 4);
    }
  }

  window.vramscope = Object.assign(window.vramscope || {}, {
    draw: { before, layout, theme, sharp, begin, steps, areas, curves, level, heights, positions, lanes, calls, stepsOf, peak, flags, comments, doubts, mapBelow, mapOver, ticks, spacing, number, unitOfTime },
  });
})();
