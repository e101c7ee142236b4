// What Dash leaves open: names of check boxes, the title, the state of a run, text that is being typed.
(function () {
  // Dash calls its check boxes the options of a list; to a screen reader they are a group of check boxes.
  function named() {
    for (const list of document.querySelectorAll(".legend[role=listbox]")) {
      list.setAttribute("role", "group");
      list.setAttribute("aria-label", "Curves shown");
    }
    for (const option of document.querySelectorAll(".legend [aria-selected]")) {
      option.removeAttribute("role");
      option.removeAttribute("aria-selected");
    }
  }
  new MutationObserver(named).observe(document.documentElement, {
    childList: true, subtree: true, attributes: true, attributeFilter: ["aria-selected"],
  });

  function title(text) {
    if (text) document.title = text;
    return window.dash_clientside.no_update;
  }

  // The state of the run, where the page has a header for it. A reply about the run that was left comes too late.
  function stand(news, address) {
    const isAbout = news && address && news.run === address.run;
    if (isAbout && document.getElementById("standing")) dash_clientside.set_props("standing", { children: news.words });
    return window.dash_clientside.no_update;
  }

  // The typed text, a quarter of a second after the last letter. Not a promise: Dash drops overtaken ones.
  const typing = {};
  function rested(text) {
    const name = window.dash_clientside.callback_context.outputs_list.id;
    clearTimeout(typing[name]);
    typing[name] = setTimeout(() => dash_clientside.set_props(name, { data: text }), 250);
    return window.dash_clientside.no_update;
  }

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.vramscope = Object.assign({}, window.dash_clientside.vramscope, {
    title, rested, stand,
  });
})();
