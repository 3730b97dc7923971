/// <reference lib="esnext.disposable" preserve="true" />
// How a lock is taken. The algorithm is the service's: every request may be repeated, at any replica, under the same id.

import { hostname } from "node:os";
import { FencelockError, LockHeld, LockLost, LockTimeout, Unavailable } from "./errors";
import { NoAnswer, now, sleep, type Answer } from "./http";
import { Lock, TOO_LATE, validUntil, type Detached } from "./lock";
import { Pauses, Service, drawIdentity, idsBegin, refusal } from "./service";
import type { Claim, Identity, Mode, ServiceOptions, Terms } from "./service";

/** How long `tryLock` tries again while no replica answers. */
const TRY_MS = 5000;
/** How much longer than the requested wait an answer may take. */
const GRACE_MS = 500;
/** The shortest validity with which a grant is handed out. */
const LEAST_VALID_MS = 10;
/** How long an answer needs to travel back. A request must not wait to the very end of the caller's time. */
const WAY_BACK_MS = 50;
/** The shortest time from the start of one poll to the next. */
const LEAST_POLL_MS = 10;
const MOST_LATE_GRANTS = 5;

export interface ClientOptions extends ServiceOptions {
  /** Shown to people who look at the lock; by default the host and the process id. */
  owner?: string;
}

export interface LockOptions {
  /** The lease, which is renewed while the lock is held; by default the service's: 30000, or its longest if that is shorter. */
  ttlMs?: number;
  /** How long to wait for the lock; by default forever. 0 is like `tryLock`. */
  timeoutMs?: number;
  /** Cancels the waiting. It has no effect once the lock is held. */
  signal?: AbortSignal;
  /** exclusive (the default), shared, or permit, which needs `permitCount`. */
  mode?: Mode;
  /** How many may hold the lock together, in mode permit. */
  permitCount?: number;
  /** How much longer the store keeps the lock if its holder vanished; 0 by default. */
  lockDelayMs?: number;
  /** A note for people. */
  label?: string;
  /** Another process will continue with the lock; see `Lock.detach`. */
  detachable?: boolean;
}

/** What a client asks for, and how long it waits. */
interface Wanted {
  terms: Terms;
  queue: boolean;
  detachable: boolean;
}

/** Checks the data of a detached lock. No error shows its contents, because they have a secret. */
function checkDetached(detached: Detached): void {
  const { claim, key, token, name, mode, ttl_ms, lock_delay_ms, owner } = detached;
  const texts = [claim, key, name, mode, owner].every((text) => typeof text === "string");
  const numbers = [token, ttl_ms, lock_delay_ms].every((number) => Number.isSafeInteger(number));
  if (!texts || !numbers || !/^[0-9a-f]{32}$/.test(claim) || !/^[\w-]{43,86}$/.test(key) || !claim.startsWith(idsBegin(key))) {
    throw new TypeError("this is no detached lock: a member is missing or wrong");
  }
}

/** Makes a client of a lock service. It connects when it is first used. */
export function connect(urls: string | string[], options: ClientOptions = {}): Client {
  return new Client(urls, options);
}

/** A client of the lock service. */
export class Client {
  private readonly service: Service;
  private readonly owner: string;
  private readonly held = new Set<Lock>();
  private readonly requests = new Set<Promise<Lock>>();
  private readonly closed = new AbortController();

  constructor(urls: string | string[], options: ClientOptions = {}) {
    this.service = new Service(typeof urls === "string" ? urls.split(",") : urls, options);
    this.owner = options.owner ?? `${hostname()}:${process.pid}`;
  }

  /** Waits in the queue until the lock is held. */
  async lock(name: string, options: LockOptions = {}): Promise<Lock> {
    const { timeoutMs = Infinity } = options;
    if (Number.isNaN(timeoutMs)) throw new RangeError("timeoutMs must be a number of milliseconds, not NaN");
    const wanted = { terms: this.terms(name, options), queue: timeoutMs > 0, detachable: options.detachable === true };
    return this.until(options.signal, (signal) => this.take(wanted, now() + (timeoutMs || TRY_MS), signal));
  }

  /** Takes the lock if it is free; otherwise throws LockHeld. */
  async tryLock(name: string, options: Omit<LockOptions, "timeoutMs"> = {}): Promise<Lock> {
    return this.lock(name, { ...options, timeoutMs: 0 });
  }

  /**
   * Runs `body` while the lock is held. If the lock is lost, `lock.signal` aborts, and LockLost is thrown, even if `body`
   * returns.
   */
  async withLock<T>(name: string, options: LockOptions, body: (lock: Lock) => Promise<T> | T): Promise<T> {
    const lock = await this.lock(name, options);
    try {
      const result = await body(lock);
      lock.check();
      return result;
    } finally {
      await lock[Symbol.asyncDispose]();
    }
  }

  /**
   * Continues with a lock that another process detached, or that `fencelock take` took. It renews the lock first. Throws LockLost if
   * the lock is no longer held, Unavailable if no replica answers in time (5 s by default).
   */
  async attach(detached: Detached, options: { timeoutMs?: number; signal?: AbortSignal } = {}): Promise<Lock> {
    checkDetached(detached);
    const deadline = now() + (options.timeoutMs ?? TRY_MS);
    return this.until(options.signal, (signal) => this.goOn(detached, deadline, signal));
  }

  /** Cancels waiting requests, releases all locks, and waits until the releases are confirmed. */
  async close(): Promise<void> {
    this.closed.abort(new FencelockError("the client was closed"));
    // A request that was cancelled leaves the queue, or releases what it was granted.
    await Promise.allSettled(this.requests);
    await Promise.all([...this.held].map((lock) => lock[Symbol.asyncDispose]()));
    while (this.service.background.size > 0) await Promise.all(this.service.background);
    this.service.transport.close();
  }

  /** For `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  private terms(name: string, options: LockOptions): Terms {
    return {
      name,
      mode: options.mode ?? "exclusive",
      lock_delay_ms: milliseconds("lockDelayMs", options.lockDelayMs ?? 0),
      owner: this.owner,
      ...(options.ttlMs === undefined ? {} : { ttl_ms: milliseconds("ttlMs", options.ttlMs) }),
      ...(options.permitCount === undefined ? {} : { permit_count: options.permitCount }),
      ...(options.label === undefined ? {} : { label: options.label }),
    };
  }

  /** Runs `work` until it ends, the caller cancels, or the client is closed. */
  private async until(cancel: AbortSignal | undefined, work: (signal: AbortSignal) => Promise<Lock>): Promise<Lock> {
    const stop = new AbortController();
    const sources = cancel ? [cancel, this.closed.signal] : [this.closed.signal];
    const abort = (): void => stop.abort(sources.find((source) => source.aborted)?.reason);
    if (sources.some((source) => source.aborted)) abort();
    sources.forEach((source) => source.addEventListener("abort", abort));
    try {
      stop.signal.throwIfAborted();
      const request = work(stop.signal);
      this.requests.add(request);
      return await request.finally(() => this.requests.delete(request));
    } finally {
      sources.forEach((source) => source.removeEventListener("abort", abort));
    }
  }

  private async goOn(detached: Detached, deadline: number, signal: AbortSignal): Promise<Lock> {
    const { claim: id, key, token, sequencer, name, mode, permit_count, ttl_ms, lock_delay_ms, owner, label } = detached;
    const terms: Terms = { name, mode, ttl_ms, lock_delay_ms, owner };
    if (permit_count != null) terms.permit_count = permit_count;
    if (label != null) terms.label = label;
    const claim = await this.service.claim(terms, deadline, signal, { identity: { id, key } });
    if (claim.isBound) throw new FencelockError(`lock ${name} belongs to the replica that took it, and cannot be attached`);
    claim.placed = true;
    const pauses = new Pauses();
    for (;;) {
      const sent = now();
      let answer: Answer;
      try {
        answer = await claim.renew(token, Math.max(deadline - sent, WAY_BACK_MS), signal);
      } catch (error) {
        if (!(error instanceof NoAnswer)) throw error;
        signal.throwIfAborted();
        const pause = pauses.next();
        if (now() + pause >= deadline) throw new Unavailable(`lock ${name}: ${error.message}`);
        await sleep(pause, signal);
        continue;
      }
      const lost = (why: string): LockLost => new LockLost(`lock ${name} (token ${token}) was lost: ${why}`);
      if (answer.status === 410) throw lost(answer.detail);
      if (answer.status !== 200 || answer.body.token !== token) throw refusal(answer);
      const until = validUntil(sent, answer.body.lease_ms_since_sent);
      if (now() >= until) throw lost(TOO_LATE);
      const body = { release_requested: false, mode, sequencer, ...answer.body };
      return this.hold(claim, { ...answer, body }, sent, until, true);
    }
  }

  private async take(wanted: Wanted, deadline: number, signal: AbortSignal): Promise<Lock> {
    const { terms, queue, detachable } = wanted;
    const identity = (): { identity?: Identity } => (detachable ? { identity: drawIdentity() } : {});
    let claim = await this.service.claim(terms, deadline, signal, identity());
    /** Claims with a new id, because the replica of the old one is gone, or does not know it. */
    const anew = async (named?: Answer["body"]): Promise<void> => {
      if (claim.unsure || claim.placed) this.leave(claim);
      claim = await this.service.claim(terms, deadline, signal, { named: claim.named(named), ...identity() });
    };
    const pauses = new Pauses();
    let heard: FencelockError = new LockTimeout(`lock ${terms.name} did not come in time`);
    let failures = 0;
    let late = 0;
    try {
      for (;;) {
        signal.throwIfAborted();
        const left = deadline - now();
        if (left <= 0) throw heard;
        const waitMs = queue ? Math.floor(Math.min(claim.store.poll_ms, left)) : 0;
        const sent = now();
        let answer: Answer;
        try {
          answer = await claim.put(queue, waitMs, Math.min(waitMs + GRACE_MS, left + WAY_BACK_MS), signal);
        } catch (error) {
          if (!(error instanceof NoAnswer)) throw error;
          signal.throwIfAborted();
          failures += 1;
          this.service.checkEnd(deadline, failures);
          // If the caller's time cut a poll short, that says nothing about the service.
          if (now() < deadline) heard = new Unavailable(`lock ${terms.name}: ${error.message}`);
          // A claim that belongs to a replica ends with it: claim anew at another one.
          if (claim.isBound && failures > 1) await anew();
          await sleep(Math.min(pauses.next(), deadline - now()), signal);
          continue;
        }
        failures = 0;
        pauses.reset();
        if (answer.status === 200) {
          claim.placed = true;
          const until = validUntil(sent, answer.body.lease_ms_since_sent);
          if (now() < until - LEAST_VALID_MS) return this.hold(claim, answer, sent, until, detachable);
          late += 1;
          heard = new Unavailable(`lock ${terms.name}: its grants come too late to be used`);
          if (late > MOST_LATE_GRANTS) throw heard;
        } else if (answer.status === 202) {
          claim.placed = true;
          const { stalled } = answer.body;
          heard = stalled
            ? new Unavailable(`lock ${terms.name}: the store grants nothing at this time: ${stalled}`)
            : new LockTimeout(`lock ${terms.name} did not come in time`);
          // A replica that is about to end answers at once. The pause avoids a busy loop.
          await sleep(sent + LEAST_POLL_MS - now(), signal);
        } else if (answer.problem === "held") {
          claim.placed = false;
          throw new LockHeld(answer.detail);
        } else if (answer.problem === "ended" || answer.problem === "other-replica") {
          claim.placed = claim.unsure = false;
          await anew(answer.body);
          await sleep(Math.min(pauses.next(), deadline - now()), signal);
        } else if (answer.status === 429) {
          heard = new Unavailable(`lock ${terms.name}: ${answer.detail}`);
          await sleep(Math.min(answer.retryAfterMs, deadline - now()), signal);
        } else {
          // Of a call that failed at the store, a part may have taken effect.
          claim.unsure ||= answer.status >= 500;
          throw refusal(answer);
        }
      }
    } catch (error) {
      if (claim.unsure || claim.placed) this.leave(claim);
      throw error;
    }
  }

  private leave(claim: Claim): void {
    claim.leave("release", false).catch(() => undefined);
  }

  private hold(claim: Claim, answer: Answer, sent: number, until: number, detachable: boolean): Lock {
    const lock = new Lock(claim, answer.body, sent, until, (ended) => this.held.delete(ended), detachable);
    this.held.add(lock);
    return lock;
  }
}

/** Whole milliseconds. JSON would turn NaN and Infinity into null, which means "by default". */
function milliseconds(option: string, value: number): number {
  if (!Number.isFinite(value) || value < 0) throw new RangeError(`${option} must be a number of milliseconds, not ${value}`);
  return Math.ceil(value);
}
