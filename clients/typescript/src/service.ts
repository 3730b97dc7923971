// The replicas, the store behind them, and a claim at the service.

import { createHash, randomBytes } from "node:crypto";
import { ConfigError, FencelockError, Refused, Unavailable } from "./errors";
import { Answer, NoAnswer, Transport, now, replicaUrl, sleep, type TransportOptions } from "./http";

const RESPONSE_MS = 2000;
/** The service's default lease, unless its longest one is shorter. */
const DEFAULT_TTL_MS = 30_000;
/** The least time that replicas have to describe their store, even if the caller's timeout is shorter. */
const LEAST_OPEN_MS = 500;
/** How often a URL is asked for the store of one replica. Behind a load balancer other replicas may answer. */
const TRIES = 4;
/** How many replicas are remembered. There are only more if replicas restart. */
const MOST_KNOWN = 256;
/** The members that identify a store, and others in which the replicas of one store must agree. */
const SAME = ["engine", "store"] as const;
const ALIKE = ["binding", "claim_window_ms", "min_ttl_ms", "shared", "permits", "lock_delay"] as const;

/** Which replicas may be asked, and as whom. */
export interface ServiceOptions extends TransportOptions {
  /**
   * `url` (the default): all replicas must have been started with the same store URL. `confirmed`: you confirm that their different
   * URLs are those of one store.
   */
  sameStore?: "url" | "confirmed";
}

/** The result of a release. */
export type Outcome = "released" | "left-queue" | "already-expired" | "not-owner";

/** How a lock is held. */
export type Mode = "exclusive" | "shared" | "permit";

/** What a client asks for, with the member names of the HTTP API. */
export interface Terms {
  name: string;
  mode: Mode;
  permit_count?: number;
  /** The service's default if it is missing. */
  ttl_ms?: number;
  lock_delay_ms: number;
  owner: string;
  label?: string;
}

/** A claim's id, and the secret key that its requests need. */
export interface Identity {
  id: string;
  key: string;
}

const drawKey = (): string => randomBytes(32).toString("base64url");

/** The first digits of the ids of a key's claims. */
export const idsBegin = (key: string): string => createHash("sha256").update(key).digest("hex").slice(0, 20);

const numbered = (key: string, count: number): Identity => ({
  id: idsBegin(key) + count.toString(16).padStart(12, "0"),
  key,
});

/** A claim with a key of its own, so that it can be given to another process. */
export const drawIdentity = (): Identity => numbered(drawKey(), 1);

/** The part of `GET /v1/store` that the client needs. */
interface Store extends Partial<Record<(typeof SAME)[number] | (typeof ALIKE)[number], unknown>> {
  binding: "store" | "replica";
  claim_window_ms: number;
  poll_ms: number;
  min_ttl_ms?: number;
  max_ttl_ms?: number;
  replica: string;
  advertise?: string | null;
}

/** The store, as the replica at this URL described it. */
interface Known {
  store: Store;
  url: URL;
}

/** Where to send a request: a URL, and on a store whose claims belong to replicas the id of the replica. */
interface Replica {
  url: URL;
  id?: string;
}

/** Whether the answer is not final: the request may have taken effect, or another replica may serve it. */
export function isTransient(answer: Answer): boolean {
  const understood = answer.status < 300 && typeof answer.body === "object" && answer.body !== null;
  return ["unavailable", "draining"].includes(answer.problem) || (!understood && !answer.problem);
}

export const refusal = (answer: Answer): Refused => new Refused(answer.detail, answer.status, answer.problem);

/** Pauses between attempts: none before the first, then longer and longer, up to a second. */
export class Pauses {
  private tries = 0;
  reset(): void {
    this.tries = 0;
  }
  next(): number {
    this.tries += 1;
    if (this.tries === 1) return 0;
    return 20 + Math.random() * Math.min(20 * 2 ** Math.min(this.tries, 10) - 20, 980);
  }
}

/** How often in a row each replica must have said that it serves another store, before a call without a timeout ends. */
const MOST_ELSEWHERE = 8;

/** The service: a list of replicas of one store. */
export class Service {
  readonly transport: Transport;
  /** Releases that continue in the background. */
  readonly background = new Set<Promise<unknown>>();
  private readonly urls: URL[];
  private current: number;
  private readonly key = drawKey();
  private count = 0;
  private readonly same: readonly (keyof Store)[];
  /** The store that a replica described first. Other replicas are compared with it. */
  private first: Known | undefined;
  /** The URLs that need no check before they are used. */
  private readonly usable = new Set<string>();
  /** The ids of the replicas that were checked, oldest first, and why one is refused; "" if it serves this store. */
  private readonly asked = new Map<string, string>();
  /** The URLs whose last answer was about another store, how often in a row, and why they are not used. */
  private readonly elsewhere = new Map<string, { times: number; why: string }>();

  constructor(urls: string[], readonly options: ServiceOptions) {
    if (urls.length === 0) throw new TypeError("name at least one replica");
    const { sameStore = "url" } = options;
    if (sameStore !== "url" && sameStore !== "confirmed") throw new TypeError(`sameStore is url or confirmed, not ${sameStore}`);
    this.same = sameStore === "url" ? SAME : SAME.slice(0, 1);
    this.urls = urls.map((url) => replicaUrl(url, options));
    // Chosen at random, so that not all processes begin with the same replica.
    this.current = Math.floor(Math.random() * urls.length);
    this.transport = new Transport(options);
  }

  /** The replica that worked last. */
  any(): URL {
    return this.urls[this.current]!;
  }

  /** Changes to another replica than this one, unless that was done already. */
  other(than: URL): URL {
    if (this.any() === than) this.current = (this.current + 1) % this.urls.length;
    return this.any();
  }

  private nextIdentity(): Identity {
    this.count += 1;
    return numbered(this.key, this.count);
  }

  run(work: Promise<unknown>): void {
    const settled = work.catch(() => undefined).finally(() => this.background.delete(settled));
    this.background.add(settled);
  }

  /** A new claim, at any replica. If claims belong to replicas: at one that answers now. */
  async claim(
    terms: Terms,
    deadline: number,
    signal: AbortSignal,
    { named, identity = this.nextIdentity() }: { named?: Known | undefined; identity?: Identity | undefined } = {},
  ): Promise<Claim> {
    const known = named ?? (this.first?.store.binding === "store" ? this.first : await this.find(deadline, signal));
    const { store, url } = known;
    if (store.binding === "store") return new Claim(this, terms, store, identity, undefined);
    const at = store.advertise ? replicaUrl(store.advertise, this.options) : url;
    return new Claim(this, terms, store, identity, { url: at, id: store.replica });
  }

  /** A replica that answers now. */
  private async find(deadline: number, signal: AbortSignal): Promise<Known> {
    const pauses = new Pauses();
    for (let failures = 1; ; failures += 1) {
      const url = this.any();
      let why: string;
      try {
        if (this.first) return { url, store: await this.ask(url, RESPONSE_MS, signal) };
        // The limit leaves time for the lock if a replica hangs.
        return await this.open(Math.min(RESPONSE_MS, Math.max((deadline - now()) / 2, LEAST_OPEN_MS)), signal);
      } catch (error) {
        if (!(error instanceof NoAnswer)) throw error;
        why = error.message;
      }
      signal.throwIfAborted();
      this.checkEnd(deadline, failures);
      this.other(url);
      const pause = pauses.next();
      if (now() + pause >= deadline) throw new Unavailable(`the lock service does not answer: ${why}`);
      await sleep(pause, signal);
    }
  }

  /**
   * Asks all replicas for their store. Those that answer must serve the same; the others are asked before they are used. Returns one
   * that answered.
   */
  private async open(timeoutMs: number, signal: AbortSignal): Promise<Known> {
    const asked = this.urls.map(async (url) => ({ url, store: await this.said(url, timeoutMs, signal) }));
    const answers = await Promise.allSettled(asked);
    const said = answers.flatMap((answer) => (answer.status === "fulfilled" ? [answer.value] : []));
    const first = this.first ?? said[0];
    if (!first || !said[0]) {
      const errors = answers.map((answer) => (answer as PromiseRejectedResult).reason);
      throw errors.find((error) => !(error instanceof NoAnswer)) ?? errors[0];
    }
    for (const { url, store } of said) {
      const why = this.differs(url, store, first);
      if (why) throw new ConfigError(why);
    }
    this.first = first;
    for (const { url, store } of said) this.note(url, store, "");
    while (!this.usable.has(this.any().href)) this.other(this.any());
    return said.find(({ url }) => url === this.any()) ?? said[0];
  }

  /** The store as the replica at `url` describes it. */
  private async said(url: URL, timeoutMs: number, signal?: AbortSignal): Promise<Store> {
    const answer = await this.send({ url }, ["GET", "/v1/store"], undefined, undefined, timeoutMs, signal);
    if (answer.status === 200 && answer.body?.poll_ms > 0) return answer.body;
    throw isTransient(answer) ? new NoAnswer(answer.detail) : refusal(answer);
  }

  /** Why the replica at `url` does not serve the store of the first one; "" if it does. */
  private differs(url: URL, store: Store, first: Known): string {
    const other = (words: readonly (keyof Store)[]): boolean => words.some((word) => store[word] !== first.store[word]);
    if (other(this.same)) {
      return (
        `the replicas serve two stores: ${url.href} serves ${store.store} (${store.engine}), and ${first.url.href} said that it ` +
        `serves ${first.store.store} (${first.store.engine}); a lock that is taken in two stores is no lock. Start all replicas with ` +
        'one store; if it is one by two names, use sameStore: "confirmed"'
      );
    }
    if (!other(ALIKE)) return "";
    return (
      `the replica at ${url.href} opened ${store.store} with other options than that at ${first.url.href} did; start all replicas ` +
      "with the same"
    );
  }

  private note(url: URL, store: Store, why: string): void {
    if (why) this.usable.delete(url.href);
    else this.usable.add(url.href);
    this.asked.set(store.replica, why);
    for (const id of this.asked.keys()) if (this.asked.size > MOST_KNOWN) this.asked.delete(id);
  }

  /** Asks the replica at `url` for its store. NoAnswer if there is no answer, or it serves another store. */
  private async ask(url: URL, timeoutMs: number, signal?: AbortSignal): Promise<Store> {
    const times = this.elsewhere.get(url.href)?.times ?? 0;
    this.elsewhere.delete(url.href);
    const store = await this.said(url, timeoutMs, signal);
    const why = this.differs(url, store, this.first!);
    this.note(url, store, why);
    if (!why) return store;
    this.elsewhere.set(url.href, { times: times + 1, why });
    throw new NoAnswer(why);
  }

  /**
   * ConfigError if a call has no timeout, and all replicas say again and again that they serve another store. Answers to earlier calls
   * only count after this call has failed at every replica: one may have been corrected since.
   */
  checkEnd(deadline: number, failures: number): void {
    if (deadline < Infinity || failures < this.urls.length) return;
    const said = this.urls.map((url) => this.elsewhere.get(url.href));
    if (said.every((one) => one && one.times >= MOST_ELSEWHERE)) throw new ConfigError(said[0]!.why);
  }

  /** Checks a URL, before it is used, that has not yet described this store. */
  async checkUrl(url: URL, timeoutMs: number, signal?: AbortSignal): Promise<void> {
    if (!this.usable.has(url.href)) await this.ask(url, timeoutMs, signal);
  }

  /**
   * NoAnswer if an answer does not count, because its replica serves another store. A replica that was not checked yet is checked
   * now, over the same URL.
   */
  async check({ replica, status }: Answer, url: URL, until: number, signal?: AbortSignal): Promise<void> {
    if (!replica) {
      // From a load balancer: a replica always gives its id.
      if (status >= 300) return;
      throw new NoAnswer(`${url.host}: the answer does not say which replica it is from`);
    }
    let why = `${url.host}: replica ${replica} does not say which store it serves`;
    for (let tries = 0; tries < TRIES && !this.asked.has(replica); tries += 1) {
      try {
        // Behind a load balancer another replica may answer, which proves nothing about this one.
        await this.ask(url, until - now(), signal);
      } catch (error) {
        if (!(error instanceof NoAnswer)) throw error;
        why = error.message;
      }
    }
    why = this.asked.get(replica) ?? why;
    if (why) throw new NoAnswer(why);
  }

  send(
    replica: Replica,
    request: [string, string],
    key: string | undefined,
    body: unknown,
    timeoutMs: number,
    signal?: AbortSignal,
  ): Promise<Answer> {
    const headers: Record<string, string> = key === undefined ? {} : { "Fencelock-Key": key };
    if (replica.id) headers["Fencelock-Replica"] = replica.id;
    return this.transport.send(replica.url, request, headers, body, timeoutMs, signal);
  }
}

/** One claim: an id that is used once, and the requests about it. */
export class Claim {
  /** Whether a request without an answer may take effect later. */
  unsure = false;
  /** Whether the store may have something of it. */
  placed = false;
  private left: Promise<Outcome> | undefined;

  constructor(
    readonly service: Service,
    readonly terms: Terms,
    readonly store: Store,
    readonly identity: Identity,
    private readonly bound: Replica | undefined,
  ) {}

  get id(): string {
    return this.identity.id;
  }

  /** The lease, with the service's default if none was asked for. Only answers of the service say how long to believe. */
  get ttlMs(): number {
    const { min_ttl_ms: least = 0, max_ttl_ms: most = Infinity } = this.store;
    return this.terms.ttl_ms ?? Math.max(Math.min(DEFAULT_TTL_MS, most - this.terms.lock_delay_ms), least);
  }

  get isBound(): boolean {
    return this.bound !== undefined;
  }

  /** The replica that a problem names, if it names one. */
  named(problem?: { replica?: string; advertise?: string }): Known | undefined {
    if (!this.bound || !problem?.replica) return undefined;
    const store = { ...this.store, replica: problem.replica, advertise: problem.advertise ?? null };
    return { store, url: this.bound.url };
  }

  /** Changes to another replica. (A claim that belongs to a replica stays there.) */
  private moveOn(from: Replica): void {
    if (!this.bound) this.service.other(from.url);
  }

  /** Sends one request. An answer that is not final is a NoAnswer, too. */
  private async send(request: [string, string], body: object, timeoutMs: number, signal?: AbortSignal): Promise<Answer> {
    const replica = this.bound ?? { url: this.service.any() };
    const until = now() + timeoutMs;
    try {
      if (!this.bound) await this.service.checkUrl(replica.url, timeoutMs, signal);
      const answer = await this.service.send(replica, request, this.identity.key, body, until - now(), signal);
      if (isTransient(answer)) throw new NoAnswer(answer.detail);
      await this.service.check(answer, replica.url, until, signal);
      if (answer.closing) this.moveOn(replica);
      // A proxy may mix up answers: never believe in the grant of another claim.
      if (answer.body.claim !== undefined && answer.body.claim !== this.id) throw new NoAnswer("an answer about another claim");
      return answer;
    } catch (error) {
      if (!signal?.aborted) this.moveOn(replica);
      // The replica refused to describe its store.
      throw error instanceof Refused ? new NoAnswer(error.message) : error;
    }
  }

  private async sendUnsure(...request: Parameters<Claim["send"]>): Promise<Answer> {
    try {
      return await this.send(...request);
    } catch (error) {
      this.unsure = true;
      throw error;
    }
  }

  /** Takes the lock, joins the queue, or goes on waiting. */
  put(queue: boolean, waitMs: number, timeoutMs: number, signal?: AbortSignal): Promise<Answer> {
    const body = { ...this.terms, queue, wait_ms: waitMs };
    return this.sendUnsure(["PUT", `/v1/claims/${this.id}`], body, timeoutMs, signal);
  }

  renew(token: number, timeoutMs: number, signal: AbortSignal): Promise<Answer> {
    return this.sendUnsure(["POST", `/v1/claims/${this.id}/renew`], { ...this.terms, token }, timeoutMs, signal);
  }

  /**
   * Ends the claim in the background, at one replica after the other, until the service has confirmed it, or for ttl and lock-delay.
   * The caller must no longer believe in the claim.
   */
  leave(how: "release" | "abandon", valid: boolean): Promise<Outcome> {
    if (!this.left) {
      this.left = this.insist(how, valid);
      const left = this.left;
      this.service.run(left);
      this.service.run(this.onceMore(how, left));
    }
    return this.left;
  }

  private release(how: string): Promise<Answer> {
    const { owner: _owner, label: _label, ...terms } = this.terms;
    return this.send(["POST", `/v1/claims/${this.id}/release`], { ...terms, how }, RESPONSE_MS);
  }

  private async insist(how: string, valid: boolean): Promise<Outcome> {
    const until = now() + this.ttlMs + this.terms.lock_delay_ms;
    const pauses = new Pauses();
    for (let tries = 1; ; tries += 1) {
      let error: FencelockError;
      try {
        const answer = await this.release(how);
        // An earlier attempt may have released the lock, and its answer was lost.
        if (answer.status === 200) return valid && tries > 1 ? "released" : answer.body.released;
        // The replica to which the claim belonged is gone, and so is the claim.
        if (answer.status === 410 || answer.status === 421) return "not-owner";
        error = refusal(answer);
      } catch (cause) {
        error = new Unavailable(`the release of ${this.terms.name} was not confirmed: ${(cause as Error).message}`);
      }
      const pause = pauses.next();
      if (now() + pause >= until) throw error;
      await sleep(pause);
    }
  }

  /** Releases again, because a request without an answer may take effect after the release. */
  private async onceMore(how: string, left: Promise<Outcome>): Promise<void> {
    await left.catch(() => undefined);
    if (!this.unsure) return;
    await sleep(this.store.claim_window_ms);
    await this.release(how);
  }
}
