-- place: take the lock, or join the queue; or report and prolong what the claim already has.
-- KEYS 1 lock  2 queue  3 queue:who  4 queue:readers  5 queue:readers:who  6 counter
-- ARGV 1 claim  2 kind  3 px of the lease  4 px of the claim window  5 tokens wanted  6 wait (1 or 0)  7 floor
--      8 server time in ms after which to do nothing  9 ticket from before, or 0  10 rest  11 least px of the queue
-- Returns {'held', first, count, fresh}, {'waits', counter, ahead, pttl, ticket, foreign}, {'busy'}, {'late', now} or
-- {'newer'}.
local claim, kind, px, wanted, rest = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[5]), ARGV[10]
local waits, floor = ARGV[6] == '1', tonumber(ARGV[7])
-- The client places no claim while the server must not grant.
local no_grants = false
-- include lib.lua

if now() > tonumber(ARGV[8]) then
  return {'late', now()}
end

local value, present = current()

-- A claim that holds keeps the longer one of its lease and the requested lease: this call may be late.
if value and string.sub(value, 5, 36) == claim then
  local left = redis.call('PTTL', name)
  if kind ~= 'x' then
    local token = grant_shared(claim, kind, math.max(tonumber(px), left), rest, true, 0)
    serve(true, kind)
    return {'held', token, 1, 1}
  end
  local first, count, token, before, since, asked, kept =
    string.match(value, '^:(%d+):(%d+):(%d+):(%d+):(%d+):(%d):(.*)$', 37)
  local fresh = 0
  if first == '0' then
    first, fresh = text(draw(1)), 1
    token = first
  end
  asked = asked == '2' and '0' or asked
  local head = 'fl1:' .. claim .. ':' .. first .. ':' .. count .. ':' .. token .. ':'
  local tail = ':' .. since .. ':' .. asked .. ':' .. kept
  if left > tonumber(px) then
    redis.call('SET', name, head .. before .. tail, 'KEEPTTL')
  else
    redis.call('SET', name, head .. px .. tail, 'PX', px)
  end
  return {'held', tonumber(first), tonumber(count), fresh}
end

if present and present == kind then
  local token, since, asked, kept =
    string.match(redis.call('HGET', reader_data, claim) or '', '^(%d+):%d+:(%d+):(%d):(.*)$')
  if token then
    asked = asked == '2' and '0' or asked
    local expiry = math.max(now() + px, tonumber(redis.call('ZSCORE', readers, claim)) or 0)
    redis.call('ZADD', readers, text(expiry), claim)
    redis.call('HSET', reader_data, claim, token .. ':' .. px .. ':' .. since .. ':' .. asked .. ':' .. kept)
    set_expiry(kind)
    return {'held', tonumber(token), 1, 0}
  end
end

if value and is_newer(value) then
  return {'newer'}
end

local queued = redis.call('ZCARD', queue)
if queued > 0 and not waits then
  -- Its waiters may have expired: those that are left decide.
  value, present = serve(value, present)
  queued = redis.call('ZCARD', queue)
end
if queued == 0 then
  if not value then
    local first, count
    if kind == 'x' then
      first, count = grant_exclusive(claim, wanted, px, rest, 0)
    else
      first, count = grant_shared(claim, kind, px, rest, true, 0)
    end
    return {'held', first, count, 1}
  end
  if present and admits(kind, present) then
    return {'held', grant_shared(claim, kind, px, rest, false, 0), 1, 1}
  end
end

if not waits then
  return {'busy'}
end

-- A claim without a ticket draws one, and is the last in the queue.
local ticket, last, ahead = ARGV[9], nil, nil
if ticket == '0' then
  last = draw(1)
  ticket = text(last)
end
redis.call('HSET', queue_data, claim,
  ARGV[4] .. ':' .. text(now()) .. ':' .. ARGV[5] .. ':' .. kind .. ':' .. rest)
if redis.call('ZADD', queue, 'NX', ticket, claim) == 1 then
  ahead = last and value and not present and queued
elseif last then
  -- The reply with its ticket was lost.
  ticket = redis.call('ZSCORE', queue, claim)
end
if queued == 0 or redis.call('PTTL', queue) < tonumber(ARGV[11]) then
  redis.call('PEXPIRE', queue, 2 * ARGV[11])
  redis.call('PEXPIRE', queue_data, 2 * ARGV[11])
end
local foreign = value and not present and string.sub(value, 1, 4) ~= 'fl1:'
local first, count
value, present, first, count = serve(value, present, claim, px)
if first then
  return {'held', first, count, 1}
end
last = last or tonumber(redis.call('GET', counter)) or 0
if last < floor then
  last = draw(1)
end
local left = value and redis.call('PTTL', name) or -2
return {'waits', last, ahead or redis.call('ZRANK', queue, claim) or 0, left, tonumber(ticket), foreign and 1 or 0}
