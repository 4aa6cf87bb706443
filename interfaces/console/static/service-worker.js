/* The service worker. It shows what is pushed to this device, and a page of its own when the console
 * does not answer. It keeps nothing: no page and no call is ever stored. */

const AWAY = `<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<title>No connection · ayes</title>
<h1>No connection</h1><p>The console does not answer. Nothing was sent.</p><p><a href="">Try again</a></p>`;
const HEADERS = {
  "Content-Type": "text/html; charset=utf-8",
  "Content-Security-Policy": "default-src 'none'; base-uri 'none'; frame-ancestors 'none'",
};

addEventListener("install", () => skipWaiting());
addEventListener("activate", (event) => event.waitUntil(clients.claim()));

addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.mode !== "navigate" || request.method !== "GET") return;
  event.respondWith(fetch(request).catch(() => new Response(AWAY, { status: 503, headers: HEADERS })));
});

addEventListener("push", (event) => event.waitUntil(notify(event.data.json())));

/* Each message must be shown, also one that takes a notification away: it replaces that first. */
async function notify({ title, body, tag, path, closes }) {
  const icon = "/static/icon-192.png";
  await registration.showNotification(title, { body, tag, icon, data: path, silent: !!closes });
  if (!closes) return;
  for (const shown of await registration.getNotifications({ tag })) shown.close();
}

addEventListener("notificationclick", (event) => {
  event.notification.close();
  event.waitUntil(open(new URL(event.notification.data, location.origin).href));
});

async function open(url) {
  const pages = await clients.matchAll({ type: "window" });
  const there = pages.find((page) => page.url === url);
  return there ? there.focus() : clients.openWindow(url);
}
