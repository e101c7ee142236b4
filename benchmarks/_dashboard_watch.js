// Runs before every script of a page: when its chart is there, what it asks the server for, and when a frame shows the reply.
(() => {
  const q = (selector) => document.querySelector(selector);
  // Of each page its own chart, or its answer where the run has nothing to draw.
  const lines = (id) => () => q(`#${id} .scatterlayer path, #${id} .barlayer path`);
  const CHART = {
    overview: () => q(".tall-track[data-ready]"),
    phases: () => q("#ph-graph[data-ready]"),
    allocations: () => window.vramscope?.rasterOf?.("al-graph"),
    peak: () => q("#pk-icicle .box"),
    fragmentation: () => q(".parts-track[data-ready]"),
    leaks: () => q("#lk-content .claim"),
    oom: () => q("#oom-content .claim"),
    fit: () => q(".fit-card"),
    waterfall: lines("wf-graph"),
    compare: () => q("main .claim"),
  };
  const QUIET_MS = 300, LONGEST_MS = 15000;
  const B = (window.bench = { n: 0, chart: 0, input: 0, begun: 0, changed: 0, replied: 0, shown: 0 });

  // Whether the run has changed is asked every two seconds, by a callback and by a look for the server; how far
  // the search of Fit is, every 0.4 s. No input asks for them.
  const POLLS = ['"tick.n_intervals"', '"fi-tick.n_intervals"'];
  const isPolled = (to, options) => `${to.url ?? to}`.includes("/alive") || POLLS.some((name) => `${options?.body}`.includes(name));
  const fetch = window.fetch;
  window.fetch = async (...args) => {
    if (isPolled(...args)) return fetch(...args);
    B.n += 1;
    const end = () => {
      B.n -= 1;
      B.replied = performance.now();
      // The frame after the next has what the reply changed.
      requestAnimationFrame(() => requestAnimationFrame(() => { B.shown = performance.now(); }));
    };
    try {
      const answer = await fetch(...args);
      // The page reads all that have content. A copy of the answer comes 5 to 14 ms after the page has read it.
      if (!answer.ok || answer.status === 204) end();
      else for (const way of ["arrayBuffer", "json", "text"]) {
        const read = answer[way].bind(answer);
        answer[way] = () => { const content = read(); content.then(end, end); return content; };
      }
      return answer;
    } catch (error) {
      end();
      throw error;
    }
  };

  const hasChart = CHART[location.pathname.slice(1)] || (() => true);
  (function look() {
    if (hasChart() || q("main .state")) B.chart = performance.now();
    // Not with every frame: chromium would draw 60 a second, which takes a tenth of a core from the server.
    else setTimeout(look, 20);
  })();

  const timeline = () => window.vramscope?.timeline;
  const frames = () => timeline()?.frames() ?? 0;
  const noted = (event) => {
    // The way of the mouse to the place of a move is not the move.
    if (!B.isArmed || (event.type === "pointermove" && !event.buttons)) return;
    // DevTools hands a wheel on only after a frame of the page: a wheel on an empty page comes 24 ms after its own
    // time, a key 0.5 ms. Of a mouse it would come before the next frame, so it counts from the frame before.
    const begun = event.type === "wheel" ? Math.max(B.frame, event.timeStamp) : event.timeStamp;
    Object.assign(B, { isArmed: false, input: event.timeStamp, begun });
    const before = frames();
    // After the callbacks of a frame, of which the one that draws may come later than this one.
    (function look() {
      requestAnimationFrame(() => setTimeout(() => {
        if (frames() !== before) B.changed = performance.now();
        else if (performance.now() - B.input < LONGEST_MS) look();
      }));
    })();
  };
  for (const kind of ["wheel", "pointermove", "keydown"]) addEventListener(kind, noted, { capture: true, passive: true });
  // The next input is the one that counts.
  B.arm = () => {
    Object.assign(B, { isArmed: true, input: 0, begun: 0, frame: 0, changed: 0, replied: 0, shown: 0 });
    requestAnimationFrame(function look() {
      B.frame = performance.now();
      if (B.isArmed) requestAnimationFrame(look);
    });
  };

  // Once nothing is awaited: milliseconds from the input to another frame, from its own time to that frame, and from
  // its own time to the frame with the last reply.
  B.settled = () => new Promise((done) => {
    const began = performance.now();
    (function look() {
      const now = performance.now(), isQuiet = now - Math.max(began, B.replied, B.shown) > QUIET_MS;
      if ((B.n === 0 && isQuiet && B.shown >= B.replied) || now - began > LONGEST_MS)
        done([B.changed && B.changed - B.begun, B.changed && B.changed - B.input, B.shown && B.shown - B.input]);
      else setTimeout(look, 10);
    })();
  });

  // Where the plot of the timeline is in the window.
  B.plot = () => {
    const figure = q(".track"), box = figure.getBoundingClientRect(), { left, top, width, height } = timeline().boxOf(figure);
    return { x: box.left + left, y: box.top + top, width, height };
  };
  // Two tenths of the run are shown, so that every move has somewhere to go.
  B.middle = () => {
    const [first, last] = timeline().whole(), tenth = (last - first) / 10;
    timeline().look(first + 4 * tenth, first + 6 * tenth);
  };

  // Frames per second that differ, while each frame moves the view: of our timeline by its key, of MemoryViz by the mouse.
  B.panned = (n) => new Promise((done) => {
    const isOurs = Boolean(timeline());
    const moved = () => [...document.querySelectorAll("svg g[transform]")].map((g) => g.getAttribute("transform")).join();
    const mouse = (target, kind, x) =>
      target.dispatchEvent(new MouseEvent(kind, { bubbles: true, view: window, clientX: 500 + x, clientY: 200 }));
    const move = (i) => {
      if (isOurs) timeline().keys.pan(i % 30 < 15 ? 0.02 : -0.02);
      else mouse(window, "mousemove", 10 * Math.abs((i % 30) - 15));
    };
    const seen = isOurs ? frames : moved, began = performance.now();
    if (!isOurs) mouse(q("polygon"), "mousedown", 0);
    let last = seen(), others = 0, i = 0;
    (function next() {
      const now = seen();
      if (now !== last) others += 1;
      last = now;
      if (i < n) {
        move(i);
        i += 1;
        requestAnimationFrame(next);
        return;
      }
      if (!isOurs) mouse(window, "mouseup", 0);
      done((1000 * others) / (performance.now() - began));
    })();
  });
})();
