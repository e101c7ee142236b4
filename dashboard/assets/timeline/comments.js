// Comments on instants: a field in the inspector, kept when it is left, and marks on the timeline.
(function () {
  const S = window.vramscope.store, T = S.state;
  const field = () => document.querySelector("#inspector textarea.comment");
  const instantOf = (text) => JSON.parse(text.id).comment;

  function say(text, words) {
    const line = text.closest("section").querySelector(".comment-said");
    if (line) line.textContent = words;
  }

  async function keep(text) {
    const track = document.querySelector(".track"), value = text.value.trim();
    if (text.readOnly || !track || text.dataset.kept === value) return;
    const { run, rank, device, restart } = JSON.parse(track.dataset.of), query = new URLSearchParams({ run, rank, device, restart, at: instantOf(text) });
    try {
      const answer = await fetch(`/api/comment?${query}`, { method: "POST", body: value });
      if (!answer.ok) throw new Error(answer.headers.get("Content-Type").startsWith("text/plain") ? await answer.text() : `The server answers ${answer.status}.`);
      text.dataset.kept = value;
      say(text, value ? "Kept." : "Deleted.");
      window.dash_clientside.vramscope.timelineGrows();
    } catch (error) {
      // What was typed stays in the field.
      say(text, `Not kept: ${error.message.trim()}`);
    }
  }

  // The field of the chosen instant, once the inspector shows it.
  function comment() {
    if (!document.querySelector(".track")) return;
    window.vramscope.inspect("i");
    const isThere = () => Boolean(field()) && (T.at === null || instantOf(field()) === T.at) && (field().focus(), true);
    if (isThere()) return;
    const watch = new MutationObserver(() => { if (isThere() || T.sel !== "i") watch.disconnect(); });
    watch.observe(document.getElementById("inspector"), { childList: true, subtree: true, attributes: true });
  }

  document.addEventListener("focusin", (event) => { if (event.target.matches("textarea.comment")) event.target.dataset.kept = event.target.value.trim(); });
  document.addEventListener("focusout", (event) => { if (event.target.matches("textarea.comment")) keep(event.target); });
  // The first Escape leaves the field, which keeps the comment; the second one closes the inspector.
  document.addEventListener("keydown", function (event) {
    if (!event.target.matches("textarea.comment")) return;
    if (event.key !== "Escape" && !(event.key === "Enter" && (event.ctrlKey || event.metaKey))) return;
    event.stopPropagation();
    event.preventDefault();
    event.target.blur();
    document.getElementById("inspector").focus();
  }, true);

  window.vramscope = Object.assign(window.vramscope || {}, { comment });
})();
