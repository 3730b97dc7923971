// A user at the dashboard, in a real browser: node dashboard.mjs URL PROFILE TOKEN [THEME [PICTURES]]
//
// Reads orders, one per line, and answers each with a line:
//   open PATH        goes to a page
//   sees TEXT        waits until the changing part of the page has this text
//   gone, back       waits until the page says that the replica does not answer, or no longer says so
//   misses TEXT      answers whether the page lacks this text
//   follow TEXT      follows the link with this text
//   press TEXT       presses the button whose text begins with this text
//   tab TEXT         presses the tabulator key until what has the focus, or its label, has this text
//   type TEXT        types into what has the focus
//   enter            presses the enter key, which leads to another page
//   keeps TEXT       waits until the page has changed twice, and answers whether what has the focus still has this text
//   picture FILE     takes a picture
//   end              prints what the page loaded from other hosts and the errors of the browser: nothing, if all is well
import { join } from "node:path";
import readline from "node:readline";
import puppeteer from "puppeteer-core";

const [url, profile, token, theme, pictures] = process.argv.slice(2);
const browser = await puppeteer.launch({
  executablePath: "/usr/bin/chromium",
  // So that the browser ends with this program, however this program ends.
  pipe: true,
  userDataDir: profile,
  args: [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    // The browser's own sandbox needs a user without special rights.
    ...(process.getuid() === 0 ? ["--no-sandbox"] : []),
  ],
});
const complaints = [];
const page = await browser.newPage();
await page.setViewport({ width: 1000, height: 560 });
await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme ?? "light" }]);
page.on("request", (request) => {
  if (!request.url().startsWith(`${url}/`)) complaints.push(`asked for ${request.url()}`);
});
page.on("console", (message) => {
  // Some tests expect that a request fails.
  if (!message.text().startsWith("Failed to load resource")) complaints.push(message.text());
});
page.on("pageerror", (error) => complaints.push(String(error)));

await page.goto(`${url}/dashboard/login`);
if (token) {
  await page.type("#token", token);
  await Promise.all([page.waitForNavigation(), page.keyboard.press("Enter")]);
}

const orders = {
  open: (path) => page.goto(url + path),
  sees: (text) => page.waitForFunction((text) => document.getElementById("main").innerText.includes(text), { timeout: 20_000 }, text),
  gone: () => page.waitForSelector("#lost:not([hidden])", { timeout: 20_000 }),
  back: () => page.waitForSelector("#lost[hidden]", { timeout: 20_000 }),
  misses: async (text) => {
    if ((await page.content()).includes(text)) throw new Error(`the page has ${text}`);
  },
  follow: (text) => act(`a ::-p-text(${text})`),
  press: (text) => act(`main button ::-p-text(${text})`),
  tab: async (text) => {
    for (let count = 0; count < 60; count++) {
      await page.keyboard.press("Tab");
      if (await hasFocus(text)) return;
    }
    throw new Error(`no tabulator leads to ${text}`);
  },
  type: (text) => page.keyboard.type(text),
  enter: () => Promise.all([page.waitForNavigation(), page.keyboard.press("Enter")]),
  keeps: async (text) => {
    for (let count = 0; count < 2; count++) {
      const before = await page.$eval("#main", (main) => main.innerText);
      await page.waitForFunction((before) => document.getElementById("main").innerText !== before, { timeout: 20_000 }, before);
    }
    if (!(await hasFocus(text))) throw new Error(`the focus has left ${text}`);
  },
  picture: (file) => page.screenshot({ path: join(pictures, file), optimizeForSpeed: false }),
  end: async () => {
    await browser.close();
    return complaints.join("; ");
  },
};

function hasFocus(text) {
  return page.evaluate((text) => {
    const focused = document.activeElement;
    const texts = [focused.innerText, focused.labels?.[0]?.innerText];
    return focused !== document.body && texts.some((found) => found?.includes(text));
  }, text);
}

// The page may update itself between the search and the click.
function act(selector) {
  return Promise.all([page.waitForNavigation(), page.locator(selector).click()]);
}

console.log("ready");
for await (const line of readline.createInterface({ input: process.stdin })) {
  const [order, ...rest] = line.split(" ");
  try {
    const said = await orders[order](rest.join(" "));
    console.log(typeof said === "string" ? `ok ${said}`.trim() : "ok");
  } catch (error) {
    console.log(`failed: ${String(error).split("\n")[0]}`);
  }
  if (order === "end") break;
}
process.exit(0);
