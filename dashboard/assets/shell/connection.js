// Whether the server is there: a banner within three seconds where it is not, and a page that goes on by itself.
(function () {
  const EVERY_MS = 800, AGAIN_MS = 500, REFUSED_MS = 3000, SILENT_MS = 2400;
  const root = document.documentElement;
  const WORDS = {
    down: ["No connection. ", "The vramscope server does not answer: it was stopped, or the network is gone. You see the last state " +
      "that it sent. This page goes on by itself when the server is back."],
    silent: ["The server is silent. ", "It is there, but has not answered for two seconds: it is paused or very busy. You see the last " +
      "state that it sent. This page goes on by itself."],
    token: ["No access. ", "The server at this address now wants another token. Open the address that it printed when it started."],
  };
  const ask = window.fetch.bind(window);
  let state = "ok", server = null, isMissed = false, isAsking = false, timer = null, failures = 0, heard = performance.now();

  function banner() {
    let made = document.getElementById("connection");
    if (!made) {
      made = document.createElement("div");
      made.id = "connection";
      made.className = "banner connection";
      made.setAttribute("role", "alert");
      document.body.append(made);
    }
    return made;
  }
  function show(found) {
    if (found === state) return;
    state = found;
    if (found === "ok") {
      delete root.dataset.connection;
      const old = document.getElementById("connection");
      if (old) old.remove();
    } else {
      root.dataset.connection = found;
      const strong = document.createElement("strong");
      strong.textContent = WORDS[found][0];
      banner().replaceChildren(strong, WORDS[found][1]);
    }
    if (document.getElementById("main")) dash_clientside.set_props("tick", { disabled: document.hidden || found !== "ok" });
  }

  async function find() {
    try {
      const reply = await ask("/alive", { cache: "no-store" });
      heard = performance.now();
      if (reply.status === 401 || reply.status === 403) return "token";
      if (!reply.ok) return "down";
      const now = await reply.text(), isOther = server !== null && now !== server;
      server = now;
      // Another process: it knows nothing of this page. What the page missed meanwhile is in its address.
      if (isOther || isMissed) { isMissed = false; location.reload(); }
      return "ok";
    } catch (error) {
      heard = performance.now();
      return "down";
    }
  }
  async function look() {
    clearTimeout(timer);
    if (isAsking) return;
    isAsking = true;
    const found = await find();
    isAsking = false;
    // A single failure may be the moment at which a server is replaced, or a laptop wakes up.
    failures = found === "ok" ? 0 : failures + 1;
    if (found !== "down" || failures > 1) show(found);
    if (!document.hidden) timer = setTimeout(look, { ok: EVERY_MS, token: REFUSED_MS }[found] || AGAIN_MS);
  }
  // A busy server answers late; silent is one from which nothing at all comes.
  setInterval(function () {
    if (!document.hidden && isAsking && state === "ok" && performance.now() - heard > SILENT_MS) show("silent");
  }, 200);

  // Dash reports a request without an answer as an error of the page, and reads a refusal twice. Such a request
  // is answered here with "no change", and the page is loaded again when the server is back.
  const unchanged = () => { isMissed = true; return new Response(null, { status: 204 }); };
  // What the head of the page has asked for already is taken once: nobody reads the same answer twice.
  async function askedBefore(name) {
    const { asked } = window.vramscope, awaited = asked[name];
    delete asked[name];
    const reply = await awaited;
    return reply && reply.ok ? reply : null;
  }
  // The first request for a page, where it is for the page that the head of this one has asked for.
  function isFirst(body) {
    const { asked, page } = window.vramscope, sent = asked.page ? JSON.parse(body) : {};
    return sent.output === page.output && JSON.stringify(sent.inputs) === JSON.stringify(page.inputs) && sent.state.every((each) => !("value" in each));
  }
  window.fetch = async function (target, options) {
    const url = String(target instanceof Request ? target.url : target);
    if (!url.includes("_dash-update-component")) return (await askedBefore(url.split("/").pop())) || ask(target, options);
    if (state === "down" || state === "token") return unchanged();
    try {
      const reply = (isFirst(options.body) && await askedBefore("page")) || await ask(target, options);
      heard = performance.now();
      if (reply.status !== 401) return reply;
    } catch (error) {
      if (error.name === "AbortError") throw error;
    }
    look();
    return unchanged();
  };

  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (!document.hidden) { heard = performance.now(); look(); }
  });
  window.addEventListener("online", look);
  window.addEventListener("offline", look);
  look();
})();
