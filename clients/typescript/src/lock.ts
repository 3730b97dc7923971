/// <reference lib="esnext.disposable" preserve="true" />
// A hold: what the client believes, and until when.

import { FencelockError, LockLost, Unavailable } from "./errors";
import { NoAnswer, at, now, sleep } from "./http";
import { Pauses, refusal, type Claim, type Mode, type Outcome, type Terms } from "./service";

/** Until when a lease that counts from `sent` may be believed: 1 % and 2 ms less than the lease, because clocks drift. */
export const validUntil = (sent: number, lease: number): number => sent + lease - (lease / 100 + 2);

/** How long `release` waits for a confirmation before it continues in the background. */
const FOREGROUND_MS = 5000;

/** The shortest time for the answer to a renewal, unless less of the lease is left. */
const LEAST_RENEWAL_MS = 100;

export const TOO_LATE = "its lease ended before a renewal was confirmed";

/** The contents of a grant. */
export interface Grant {
  token: number;
  sequencer: string;
  mode: Mode;
  release_requested: boolean;
}

/** A lock for another process, as data for JSON. It has a secret: anybody who has it may renew and release the lock. */
export interface Detached extends Terms {
  ttl_ms: number;
  claim: string;
  token: number;
  key: string;
  sequencer: string;
}

/** A lock that is held. It is renewed until it is released or lost. */
export class Lock {
  /** The lock's name. */
  readonly name: string;
  /** The fencing token: higher than that of each earlier grant. Hand it to what the lock protects. */
  readonly token: number;
  /** The grant as a text, for `fencelock check`. */
  readonly sequencer: string;
  readonly mode: Mode;
  /** Whether another client has asked for the lock. It is yours until you release it. */
  releaseRequested: boolean;
  private state: "held" | "lost" | "released" | "detached" = "held";
  private readonly loss = new AbortController();
  private readonly over = new AbortController();
  private keeping = new AbortController();
  private cancelTimer: () => void = () => undefined;

  /** @internal */
  constructor(
    private readonly claim: Claim,
    grant: Grant,
    private sent: number,
    private until: number,
    private readonly ended: (lock: Lock) => void,
    private readonly detachable: boolean,
  ) {
    this.name = claim.terms.name;
    this.token = grant.token;
    this.sequencer = grant.sequencer;
    this.mode = grant.mode;
    this.releaseRequested = grant.release_requested;
    this.arm();
    void this.keep(this.keeping.signal);
  }

  /** Aborts when the lock is lost, with a LockLost as its reason, before another client can get the lock. */
  get signal(): AbortSignal {
    return this.loss.signal;
  }

  /**
   * Whether the lock is held, by the clock at this moment. It is right even if the event loop was blocked for so long that
   * `signal` could not tell. Ask before each step that must not be done twice.
   */
  isValid(): boolean {
    return this.state === "held" && now() < this.until;
  }

  /** For how many milliseconds the lock is valid without another renewal; 0 if it is not. */
  validForMs(): number {
    return this.isValid() ? this.until - now() : 0;
  }

  /** Throws LockLost if the lock is not held any more. */
  check(): void {
    if (this.isValid()) return;
    if (this.state === "released" || this.state === "detached") throw new LockLost(`lock ${this.name} was ${this.state}`);
    this.lose(TOO_LATE);
    throw this.loss.signal.reason;
  }

  /**
   * Releases the lock. From this call on it is not held. If no replica confirms it within 5 s, it throws Unavailable; the
   * client goes on in the background until the lease is over.
   */
  async release(): Promise<Outcome> {
    if (this.state === "detached") {
      throw new FencelockError(`lock ${this.name} was detached; whoever has it now releases it`);
    }
    const valid = this.isValid();
    if (this.state === "held" && !valid) this.lose(TOO_LATE);
    if (this.state === "held") {
      this.state = "released";
      this.end();
    }
    const left = this.claim.leave("release", valid);
    const timer = new AbortController();
    const late = sleep(FOREGROUND_MS, timer.signal).then(() => {
      throw new Unavailable(`the release of ${this.name} is not confirmed yet`);
    });
    try {
      return await Promise.race([left, late]);
    } finally {
      late.catch(() => undefined);
      timer.abort();
    }
  }

  /**
   * Renews the lock a last time, and gives it away as data for another process, which goes on with it by `client.attach`. From then
   * on it is not held here, and nobody renews it until it is attached. The lock must have been taken with `detachable: true`.
   */
  async detach(): Promise<Detached> {
    if (!this.detachable) throw new FencelockError(`lock ${this.name} was not taken with detachable: true`);
    if (this.claim.isBound) {
      throw new FencelockError(`lock ${this.name} belongs to the replica that took it, and cannot be detached from it`);
    }
    this.check();
    this.keeping.abort();
    const pauses = new Pauses();
    for (let confirmed = false; !confirmed; ) {
      this.check();
      try {
        const answer = await this.claim.renew(this.token, this.renewalMs(), this.over.signal);
        if (answer.status === 410) this.lose(answer.detail);
        else if (answer.status !== 200) {
          this.keeping = new AbortController();
          void this.keep(this.keeping.signal);
          throw refusal(answer);
        }
        confirmed = true;
      } catch (error) {
        if (!(error instanceof NoAnswer)) throw error;
        await sleep(Math.min(pauses.next(), Math.max(this.until - now(), 0)), this.over.signal);
      }
    }
    this.check();
    this.state = "detached";
    this.end();
    const { id: claim, key } = this.claim.identity;
    return { ...this.claim.terms, ttl_ms: this.claim.ttlMs, claim, token: this.token, key, sequencer: this.sequencer };
  }

  /** For `await using`: releases the lock. What cannot be confirmed continues in the background. After a loss it does not wait. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.state === "held" && !this.isValid()) this.lose(TOO_LATE);
    if (this.state === "lost" || this.state === "detached") return;
    await this.release().catch((error) => {
      if (!(error instanceof FencelockError)) throw error;
    });
  }

  /** Ends renewals, and belief in the lock. */
  private end(): void {
    this.over.abort();
    this.keeping.abort();
    this.cancelTimer();
    this.ended(this);
  }

  private lose(why: string): void {
    if (this.state !== "held") return;
    this.state = "lost";
    this.end();
    this.loss.abort(new LockLost(`lock ${this.name} (token ${this.token}) was lost: ${why}`));
    this.claim.leave("abandon", false).catch(() => undefined);
  }

  /** Sets the timer that declares the loss. It does not depend on renewals. */
  private arm(): void {
    this.cancelTimer();
    this.cancelTimer = at(this.until, () => this.lose(TOO_LATE));
  }

  /** How long to wait for the answer to a renewal: a part of the lease, so that there is time for other replicas. */
  private renewalMs(): number {
    const left = this.until - now();
    return Math.min(Math.max(left / 3, LEAST_RENEWAL_MS), left);
  }

  private async keep(stop: AbortSignal): Promise<void> {
    const ttl = this.claim.ttlMs;
    let due = this.sent + (this.until - this.sent) / 3;
    while (this.state === "held") {
      await sleep(due - now(), stop);
      if (this.state !== "held" || stop.aborted) return;
      const sent = now();
      if (sent >= this.until) return this.lose(TOO_LATE);
      let confirmed = false;
      try {
        const answer = await this.claim.renew(this.token, this.renewalMs(), stop);
        if (answer.status === 410) return this.lose(answer.detail);
        confirmed = answer.status === 200 && answer.body.token === this.token;
        if (confirmed && this.isValid()) {
          this.releaseRequested ||= answer.body.release_requested === true;
          this.sent = sent;
          this.until = Math.max(this.until, validUntil(sent, answer.body.lease_ms_since_sent));
          this.arm();
        }
      } catch {
        // No answer: the next attempt uses another replica.
      }
      const left = this.until - now();
      due = confirmed ? this.sent + (this.until - this.sent) / 3 : now() + Math.max(Math.min(left / 4, ttl / 10), 10);
    }
  }
}
