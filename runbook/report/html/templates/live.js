// Keeps an open page as the stored incident is: asks again, changes only what differs, and tells it once.
// Focus, scroll position, open details and what was typed stay, as elements are changed in place.
(() => {
  "use strict";
  const OUT_OF_SIGHT = 6;       // a tab that nobody looks at asks so many times less often
  const LONGEST_WAIT_MS = 30_000;
  const ANSWER_WITHIN_MS = 20_000;
  const SETTLE_MS = 2_000;

  const page = document.getElementById("page");
  const connection = document.getElementById("connection");
  const news = document.getElementById("news");
  let lastGood = new Date();
  let failures = 0;
  let tag = "";
  let timer = 0;
  let asking = false;

  const same = (one, other) =>
    one.nodeType === other.nodeType && one.nodeName === other.nodeName && (one.id || "") === (other.id || "");

  function takeOver(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== Node.ELEMENT_NODE) {
      old.data = fresh.data;
      return;
    }
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !(name === "open" && old.localName === "details")) old.removeAttribute(name);
    }
    for (const { name, value } of [...fresh.attributes]) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    takeOverChildren(old, fresh);
  }

  // What is new is put in before the child that comes later too; what is no more goes.
  function takeOverChildren(old, fresh) {
    const wanted = [...fresh.childNodes];
    let at = old.firstChild;
    wanted.forEach((next, index) => {
      while (at && !same(at, next) && !wanted.slice(index + 1).some((later) => same(at, later))) {
        const gone = at;
        at = at.nextSibling;
        gone.remove();
      }
      if (at && same(at, next)) {
        takeOver(at, next);
        at = at.nextSibling;
      } else {
        old.insertBefore(document.importNode(next, true), at);
      }
    });
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  }

  const said = () => new Map([...page.querySelectorAll("[data-say]")].map((one) =>
    [one.dataset.say, one.textContent.replace(/\s+/g, " ").trim()]));

  const asked = () => page.querySelector(".actions")?.id;

  // A click that was meant for the question before must not answer the one that has just come in its place.
  function settle() {
    for (const button of page.querySelectorAll(".actions button")) {
      button.disabled = true;
      setTimeout(() => { button.disabled = false; }, SETTLE_MS);
    }
  }

  function show(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const freshPage = fresh.getElementById("page");
    if (!freshPage) throw new Error("no page");
    if (freshPage.dataset.assets !== page.dataset.assets) {
      location.reload();          // the program was upgraded: its style and script are others
      return;
    }
    const before = said();
    const askedBefore = asked();
    takeOver(page, freshPage);
    if (asked() !== askedBefore) settle();
    document.title = fresh.title;
    const changed = [...said()].filter(([name, words]) => words && before.get(name) !== words).map(([, words]) => words);
    if (changed.length) news.textContent = changed.join(" ");
  }

  function connected() {
    if (failures) news.textContent = "Connected again.";
    failures = 0;
    lastGood = new Date();
    connection.hidden = true;
  }

  function notConnected(why) {
    failures += 1;
    const words = `${why} since ${lastGood.toISOString().slice(11, 19)} UTC. `
      + "What stands here is from then; this page goes on asking.";
    if (connection.textContent !== words || connection.hidden) {
      connection.textContent = words;
      connection.hidden = false;
      news.textContent = words;
    }
  }

  async function look() {
    clearTimeout(timer);
    if (asking) return;
    asking = true;
    try {
      const answer = await fetch(location.href, {
        cache: "no-store", redirect: "manual", headers: tag ? { "If-None-Match": tag } : {},
        signal: AbortSignal.timeout(ANSWER_WITHIN_MS),
      });
      if (answer.status === 200) {
        const text = await answer.text();
        connected();
        show(text);
        tag = answer.headers.get("ETag") || "";
      } else if (answer.status === 304) {
        connected();
      } else if (answer.type === "opaqueredirect" || answer.status === 401 || answer.status === 403) {
        notConnected("Signed out");
      } else {
        notConnected("Not connected");
      }
    } catch {
      notConnected("Not connected");
    }
    asking = false;
    const every = Number(page.dataset.live || 0) * 1000;
    if (!every) return;           // it is over: the page is what it will stay
    const wait = Math.min(every * 2 ** Math.min(failures, 3), Math.max(every, LONGEST_WAIT_MS));
    timer = setTimeout(look, document.hidden ? wait * OUT_OF_SIGHT : wait);
  }

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && page.dataset.live) look();
  });
  timer = setTimeout(look, Number(page.dataset.live) * 1000);
})();
