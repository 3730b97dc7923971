export { Client, connect, type ClientOptions, type LockOptions } from "./client";
export { FencelockError, LockHeld, LockLost, LockTimeout, Refused, Unavailable } from "./errors";
export type { TransportOptions } from "./http";
export { Lock, type Detached } from "./lock";
export type { Mode, Outcome } from "./service";
