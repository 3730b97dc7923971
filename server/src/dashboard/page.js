// Brings the changing part of a page up to date, again and again. Without it the pages work, too: they show how it was when they
// were loaded.
"use strict";

const main = document.getElementById("main");
const lost = document.getElementById("lost");
const pause = Number(main.dataset.live);

// A replica that has not answered for so long (in ms) is away. It needs some time itself to find that its store is away.
const patience = 10000;

// Shows the new text, and leaves the focus where it was.
function show(text) {
  if (text === shown) return;
  const link = main.contains(document.activeElement) && document.activeElement.getAttribute("href");
  main.innerHTML = shown = text;
  if (link) main.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus();
}

async function refresh() {
  try {
    const headers = { "Fencelock-Part": "1" };
    const answer = await fetch(location.href, { headers, redirect: "error", signal: AbortSignal.timeout(patience) });
    if (answer.status === 401) return location.reload();
    show(await answer.text());
    lost.hidden = true;
  } catch {
    lost.hidden = false;
  }
  setTimeout(refresh, pause);
}

let shown = "";
if (pause) setTimeout(refresh, pause);
