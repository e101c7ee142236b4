// The button beside a command copies it. Where a page may not write to the clipboard, the text is selected.
document.addEventListener("click", function (event) {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const shown = button.parentElement.querySelector(".copy-text");
  const say = (word) => { button.textContent = word; setTimeout(() => { button.textContent = "Copy"; }, 1600); };
  const select = () => { getSelection().selectAllChildren(shown); say("Selected"); };
  if (!navigator.clipboard) { select(); return; }
  navigator.clipboard.writeText(shown.textContent).then(() => say("Copied"), select);
});
