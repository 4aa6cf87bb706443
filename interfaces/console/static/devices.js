/* The page of devices: notifications on this one. */

const find = (selector) => document.querySelector(selector);

async function sha256(text) {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/* Which of the devices this is, and the button that adds it. */
async function offer(form, { pushManager }) {
  const mine = await pushManager.getSubscription();
  const mark = mine && find(`[data-device="${await sha256(mine.endpoint)}"]`);
  form.hidden = !!mark;
  find("#push-state").textContent = mark ? "This device is notified." : "";
  if (mark) {
    mark.hidden = false;
    mark.closest(".row").querySelector("form").addEventListener("submit", () => mine.unsubscribe());
  }
  form.addEventListener("submit", (event) => {
    if (form.elements.endpoint.value) return;
    event.preventDefault();
    event.stopPropagation();
    subscribe(form, pushManager).catch((problem) => {
      find("#push-state").textContent =
        `The browser does not allow it: ${problem.message}. Its settings for this site can change that.`;
    });
  }, true);
}

async function subscribe(form, pushManager) {
  const applicationServerKey = find("[data-push-key]").dataset.pushKey;
  const options = { userVisibleOnly: true, applicationServerKey };
  // One of another key, as of a store that was made anew, cannot be used.
  await (await pushManager.getSubscription())?.unsubscribe();
  const { endpoint, keys } = (await pushManager.subscribe(options)).toJSON();
  const name = navigator.userAgentData?.platform || navigator.platform;
  for (const [field, value] of Object.entries({ name, endpoint, ...keys }))
    if (form.elements[field]) form.elements[field].value = value;
  form.submit();
}

const registration = await navigator.serviceWorker?.ready;
if (registration?.pushManager) await offer(find("#notify"), registration);
