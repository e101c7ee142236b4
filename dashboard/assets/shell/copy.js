// What can be taken along: a command, a table, a stack, what the inspector shows, and a link to all of it.
(function () {
  // Where a page may not write to the clipboard, what is shown is selected instead, if it is the text.
  function copy(button, text, shown) {
    const word = button.textContent, say = (now) => { button.textContent = now; setTimeout(() => { button.textContent = word; }, 1600); };
    const select = () => { if (shown) getSelection().selectAllChildren(shown); say(shown ? "Selected" : "Not allowed here"); };
    if (!navigator.clipboard) { select(); return; }
    navigator.clipboard.writeText(text).then(() => say("Copied"), select);
  }

  const flat = (node) => (node ? node.innerText.trim().replace(/\s+/g, " ") : "");
  // A line of a stack as Python writes it; with whole paths only where somebody asks for the stack alone.
  function frames(list, isWhole) {
    return [...list.querySelectorAll("li")].filter((item) => !item.querySelector("li")).map(function (item) {
      const [name, place] = [...item.querySelectorAll("bdi")].map((part) => part.textContent), line = (place || "").split(":").pop();
      return `  ${isWhole && item.title ? `${item.title}:${line}` : place}  ${name}`;
    }).join("\n");
  }

  // What the inspector shows as text for an issue: names of files without their folders.
  function asText(body) {
    const header = body.querySelector("header"), run = flat(document.querySelector(".run-name")), facts = flat(document.querySelector(".run-header .facts"));
    const fact = (row) => `${flat(row.querySelector("dt"))}: ${flat(row.querySelector("dd"))}`;
    const factsOf = (part) => [...part.querySelectorAll(".fact-list > div")].filter((row) => part !== body || !row.closest("section"));
    const lines = [`**${[...header.children].map(flat).filter(Boolean).join(" · ")}**`, `${run} · ${facts}`, "", ...factsOf(body).map((row) => `- ${fact(row)}`)];
    for (const part of body.querySelectorAll("section")) {
      const list = part.querySelector("ol.frames"), comment = part.querySelector("textarea.comment");
      const texts = comment ? comment.value.split("\n").filter((line) => line.trim())
        : [...factsOf(part).map(fact), ...[...part.querySelectorAll("p:not(.card-links), .picks li")].map(flat).filter(Boolean)];
      if (!list && !texts.length) continue;
      lines.push("", `${flat(part.querySelector("h4"))}:`, ...(list ? ["```", frames(list, false), "```"] : texts.map((text) => `- ${text}`)));
    }
    return lines.join("\n");
  }

  document.addEventListener("click", function (event) {
    const button = event.target.closest("button.copy, [data-copy]");
    if (!button) return;
    const body = document.getElementById("inspector-body"), list = body && body.querySelector("ol.frames"), shown = button.parentElement.querySelector(".copy-text");
    if (button.dataset.copy === "link") copy(button, location.href);
    else if (button.dataset.copy === "text") copy(button, asText(body));
    else if (button.dataset.copy === "stack") { if (list) copy(button, frames(list, true).replace(/^ {2}/gm, ""), list); }
    else copy(button, shown.textContent, shown);
  });
  window.vramscope = Object.assign(window.vramscope || {}, { copy });
})();
