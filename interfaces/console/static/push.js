/* The notifications that are open. console.js loads this where the reader allows any. */

const find = (selector) => document.querySelector(selector);

/* What the reader looks at is news no more. */
async function closeSeen(registration) {
  const call = find("article.call")?.dataset.call;
  const seen = [location.pathname + location.search, location.pathname, `/calls/${call}`];
  if (location.pathname === "/") seen.push("/?q=is:mine");
  for (const shown of await registration.getNotifications())
    if (seen.includes(shown.data)) shown.close();
}

const registration = await navigator.serviceWorker.ready;
const look = () => document.hidden || closeSeen(registration);
document.addEventListener("visibilitychange", look);
document.body.addEventListener("htmx:afterSwap", look);
look();
