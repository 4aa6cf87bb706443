/* Pages whose items change by themselves: the items of [data-live] are read again when something has
 * happened to one of them, and a reply is shown while the model gives it. console.js starts this on
 * a page that has such items, before it changes any.
 */

const EVERY_MS = 2000;  // the items are read again at most this often

export function start({
  all, announce, count, down, enhance, find, fragment, isPressed, marked, parsed, workspace,
}) {
  const regions = all("[data-live]");
  const items = (within) => all(":is([data-live], [data-items]) > [id]", within);
  const sent = new WeakMap();  // the HTML of an item as the server sent it
  const isInUse = (item) => isPressed(item) || find("details[open] form, form :focus", item);
  const folds = (item) => [item, ...all("details", item)].filter((one) => one.matches("details"));
  let isStale = false;
  let readAt = 0;

  function concerns(region, event) {
    const { live, thread } = region.dataset;
    if (workspace && ![workspace, "_organisation"].includes(event.workspace)) return false;
    if (thread) return thread === `${event.workspace}/${event.thread}`;
    return live === "*" || live.split(" ").includes(event.call ? event.type : "other");
  }

  async function readLive() {
    if (!isStale || Date.now() < readAt || down.size) return;
    isStale = false;
    readAt = Infinity;
    const text = await fragment(location.pathname + location.search).catch(() => null);
    readAt = Date.now() + EVERY_MS;
    if (text === null) return void (isStale = true);
    const page = parsed(text);
    items(page).forEach((item) => sent.set(item, item.outerHTML));
    for (const region of regions) mergeItems(region, find(`#${CSS.escape(region.id)}`, page));
    count();  // so that the header does not contradict the list
  }

  /* Make the items those of the server. What has not changed, or is in use, stays as it is. */
  function mergeItems(region, fresh) {
    const known = new Map([...region.children].map((item) => [item.id, item]));
    let place = region.firstElementChild;
    for (const item of fresh ? [...fresh.children] : []) {
      const here = known.get(item.id);
      known.delete(item.id);
      if (!here) announce("There is something new on this page.");
      const stays = here && mergeItem(here, item);
      if (here && !stays) here.replaceWith(item);
      const chosen = stays ? here : item;
      if (here && here === place) place = chosen;
      if (chosen === place) place = place.nextElementSibling;
      else region.insertBefore(chosen, place);
      if (stays) continue;
      htmx.process(item);
      enhance(item);
    }
    for (const item of known.values()) {
      if (isInUse(item)) isStale = true;
      else item.remove();
    }
  }

  /* Whether the item stays. */
  function mergeItem(here, item) {
    if (sent.get(here) === sent.get(item)) return true;
    const [inner, fresh] = [here, item].map(
      (one) => (one.matches("[data-items]") ? one : find("[data-items]", one)));
    if (inner && fresh) return mergeItems(inner, fresh), true;
    if (isInUse(here)) return isStale = true;
    const before = folds(here);
    folds(item).forEach((fold, number) => { fold.open ||= before[number]?.open ?? false; });
    return false;
  }

  // The text of a reply while the model gives it. The recorded reply comes with its item, and
  // replaces the text.

  let followed;  // the element with the text
  let replyStream;

  /* A hidden page follows no reply: a browser has six connections to a server. */
  function followReply() {
    const place = document.hidden ? null : find("[data-reply]:not([data-ended])");
    if (place === followed) return;
    replyStream?.close();
    followed = place;
    if (place) replyStream = streamReply(place, find("pre", place));
  }

  function streamReply(place, text) {
    const source = new EventSource(`/api/v1/threads/${place.dataset.reply}`);
    const ended = () => {
      source.close();
      place.dataset.ended = "yes";
      isStale = true;
    };
    source.addEventListener("turn", () => text.replaceChildren());  // the text begins anew
    source.addEventListener("text", ({ data }) => text.append(marked(JSON.parse(data).text)));
    source.addEventListener("discarded", () => text.replaceChildren());
    source.addEventListener("ended", ended);
    source.addEventListener("failed", ended);
    source.addEventListener("error", () => {
      if (source.readyState !== EventSource.CLOSED) return;  // the browser connects again
      setTimeout(() => { if (followed === place) followed = null; }, 2000);
    });
    return source;
  }

  items(document).forEach((item) => sent.set(item, item.outerHTML));
  return {
    happened: (event) => { isStale ||= regions.some((region) => concerns(region, event)); },
    reset: () => { isStale = true; },
    tick() {
      readLive();
      followReply();
    },
  };
}
