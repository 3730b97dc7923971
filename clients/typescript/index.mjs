// For `import`. The package is loaded once, whether it is imported or required, so that `instanceof` works for both.
export {
  connect,
  Client,
  Lock,
  ConfigError,
  FencelockError,
  LockHeld,
  LockLost,
  LockTimeout,
  Refused,
  Unavailable,
} from "./dist/index.js";
