// One HTTP exchange: no redirects, no retries, and no answer after its time is over.

import * as http from "node:http";
import * as https from "node:https";

/** The longest delay of a timer, in milliseconds. */
const LONGEST_TIMER = 2 ** 31 - 1;
const CONNECT_MS = 1000;
const LARGEST_ANSWER = 1 << 20;

/**
 * The monotonic clock of this process, in milliseconds. Node has no clock that counts while the machine is
 * suspended. So after a suspend an expired hold may look valid, and only the token protects the resource.
 */
export const now = (): number => performance.now();

/** Calls `then` at the time `due` or soon after, never before. The returned function cancels it. */
export function at(due: number, then: () => void): () => void {
  let timer: NodeJS.Timeout;
  const arm = (): void => {
    const left = due - now();
    timer = setTimeout(() => (now() >= due ? then() : arm()), Math.min(Math.max(Math.ceil(left), 0), LONGEST_TIMER));
  };
  arm();
  return () => clearTimeout(timer);
}

/** Resolves after this time, or as soon as the signal aborts. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const done = (): void => {
      cancel();
      signal?.removeEventListener("abort", done);
      resolve();
    };
    const cancel = at(now() + ms, done);
    signal?.addEventListener("abort", done);
  });
}

/** Credentials and trust. */
export interface TransportOptions {
  /** A bearer token of the service (`flk_…`). */
  token?: string;
  /** The certificates of the authorities to trust, in PEM, instead of the system's. */
  ca?: string | Buffer;
  /** This client's certificate and its key, in PEM. */
  cert?: string | Buffer;
  key?: string | Buffer;
}

/** An answer. Its body is an object if it was JSON. */
export interface Answer {
  status: number;
  body: any;
  /** The last word of a problem's type; "" if the body is no problem. */
  problem: string;
  detail: string;
  retryAfterMs: number;
  /** The replica closes the connection. It may be about to end. */
  closing: boolean;
  /** The id of the replica that answered, which it draws at its start; "" if no replica did. */
  replica: string;
}

/** No answer came. The request may take effect nevertheless. */
export class NoAnswer extends Error {}

/** Checks the URL of a replica. */
export function replicaUrl(text: string, options: TransportOptions): URL {
  const url = new URL(text);
  if (url.protocol !== "http:" && url.protocol !== "https:") {
    throw new TypeError(`the URL of a replica begins with http:// or https://, not ${url.protocol}`);
  }
  if (url.username || url.password) throw new TypeError("a token does not belong into the URL; use the option `token`");
  const host = url.hostname;
  const loopback = host === "localhost" || host === "[::1]" || /^127(\.\d+){3}$/.test(host);
  if (url.protocol === "http:" && !loopback && options.token) {
    throw new TypeError(`the token is not sent to ${url.origin} over plain http; use https`);
  }
  return url;
}

/** Sends requests over connections that are kept open. */
export class Transport {
  private readonly agents: { "http:": http.Agent; "https:": https.Agent };

  constructor(private readonly options: TransportOptions) {
    // The service closes an idle connection after a minute. This side closes it earlier.
    const kept = { keepAlive: true, timeout: 30_000 };
    const { ca, cert, key } = options;
    this.agents = { "http:": new http.Agent(kept), "https:": new https.Agent({ ...kept, ca, cert, key }) };
  }

  close(): void {
    this.agents["http:"].destroy();
    this.agents["https:"].destroy();
  }

  /** Rejects with NoAnswer if there is none within `timeoutMs`, or when the signal aborts. Then the connection is closed. */
  send(
    base: URL,
    [method, path]: [string, string],
    headers: Record<string, string>,
    body: unknown,
    timeoutMs: number,
    signal?: AbortSignal,
  ): Promise<Answer> {
    const secure = base.protocol === "https:";
    const content = body === undefined ? "" : JSON.stringify(body);
    const sent: Record<string, string | number> = { ...headers, "Content-Length": Buffer.byteLength(content) };
    if (content) sent["Content-Type"] = "application/json";
    if (this.options.token) sent["Authorization"] = `Bearer ${this.options.token}`;
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(new NoAnswer("given up"));
      const request = (secure ? https : http).request(base.href.replace(/\/$/, "") + path, {
        method,
        headers: sent,
        agent: secure ? this.agents["https:"] : this.agents["http:"],
      });
      const timers = [at(now() + timeoutMs, () => fail(`no answer within ${Math.round(timeoutMs)} ms`))];
      const end = (): void => {
        timers.forEach((cancel) => cancel());
        signal?.removeEventListener("abort", abandon);
      };
      const fail = (why: string): void => {
        end();
        request.destroy();
        reject(new NoAnswer(`${base.origin}: ${why}`));
      };
      const abandon = (): void => fail("given up");
      signal?.addEventListener("abort", abandon);
      request.on("error", (error) => fail(error.message));
      request.on("socket", (socket) => {
        if (!socket.connecting) return;
        const cancel = at(now() + CONNECT_MS, () => fail(`no connection within ${CONNECT_MS} ms`));
        timers.push(cancel);
        socket.once("connect", cancel);
      });
      request.on("response", (response) => {
        const parts: Buffer[] = [];
        let size = 0;
        response.on("data", (part: Buffer) => {
          size += part.length;
          if (size > LARGEST_ANSWER) fail("the answer is too large");
          else parts.push(part);
        });
        response.on("error", (error) => fail(error.message));
        response.on("end", () => {
          end();
          resolve(parse(response, Buffer.concat(parts)));
        });
      });
      request.end(content);
    });
  }
}

function parse(response: http.IncomingMessage, content: Buffer): Answer {
  const status = response.statusCode ?? 0;
  const type = response.headers["content-type"] ?? "";
  let body: any;
  try {
    body = JSON.parse(content.toString("utf8"));
  } catch {
    body = undefined;
  }
  const isProblem = type.startsWith("application/problem+json") && typeof body?.type === "string";
  const seconds = Number(response.headers["retry-after"] ?? NaN);
  return {
    status,
    body,
    problem: isProblem ? body.type.slice(body.type.lastIndexOf(":") + 1) : "",
    detail: isProblem ? String(body.detail ?? body.title ?? "") : `HTTP status ${status} without an explanation`,
    retryAfterMs: Number.isFinite(seconds) && seconds >= 0 ? seconds * 1000 : 1000,
    closing: response.headers.connection?.toLowerCase() === "close",
    replica: String(response.headers["fencelock-replica"] ?? ""),
  };
}
