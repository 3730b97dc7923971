-- lib: what the scripts share. It expects two locals. `floor`: the highest token that the client has seen from this store
-- (in a cluster: from this slot). `no_grants`: the client knows that the server must not grant now, since it was started
-- or promoted recently; then no waiter is served, and the waiters ask again.
-- KEYS 1 lock  2 queue  3 queue:who  4 queue:readers  5 queue:readers:who  6 counter
--
-- The lock itself, at `name`:
--   fl1:<claim>:<first>:<count>:<token>:<px>:<since>:<asked>:<rest>   held by one claim; first 0: the token is not recorded
--   fl1:*:<kind>                                                      held by several claims of that kind, the readers
--   anything else                                                     held by a client of another kind
-- rest = <delay>:<channel>:<owner>\31<label>; kind = x (exclusive), s (shared), p<of> (permits).
-- asked = 0, 1 (asked to release), 2 (handed over by another client's script, and not confirmed by the claim yet).
-- Beside it, only while used (queue = the key ...:fencelock:line):
--   queue               zset claim -> ticket
--   queue:who           hash claim -> <window>:<seen>:<reserve>:<kind>:<rest>    seen: when it was placed last, in ms
--   queue:readers       zset claim -> expiry
--   queue:readers:who   hash claim -> <token>:<px>:<since>:<asked>:<rest>
local name, queue, queue_data, readers, reader_data, counter = unpack(KEYS)

-- In a cluster each slot has its own counter. The counter's tag is also part of the names of the channels for grants, so
-- that they are at the node of this slot.
local channel_tag = string.sub(counter, 18)

-- The server's time, asked for once: in microseconds, and in milliseconds.
local time
local function micros()
  if not time then
    local parts = redis.call('TIME')
    time = parts[1] * 1000000 + parts[2]
  end
  return time
end

local function now()
  return math.floor(micros() / 1000)
end

-- A number as text. `tostring` would round it.
local function text(number)
  return string.format('%.0f', number)
end

-- Draws as many tokens as wanted while the counter stays below the server's time in microseconds, else one. A counter
-- below what the client has seen was lost; it is lifted above every token that can have been drawn before. Where a replica
-- may take over (`timed`), every token is at least the server's time, so that tokens that the replica did not receive are
-- below it.
local function draw(wanted)
  if timed then
    local last = math.max(tonumber(redis.call('GET', counter)) or 0, floor)
    if last > micros() - wanted then
      wanted = 1
    end
    last = math.max(last, micros() - wanted) + wanted
    redis.call('SET', counter, text(last))
    return last - wanted + 1, wanted
  end
  if wanted > 1 and (tonumber(redis.call('GET', counter)) or 0) + wanted > micros() then
    wanted = 1
  end
  local last = redis.call('INCRBY', counter, wanted)
  if last - wanted < floor then
    last = math.max(floor, micros()) + wanted
    redis.call('SET', counter, text(last))
  end
  return last - wanted + 1, wanted
end

-- Grants the free lock to an exclusive claim.
local function grant_exclusive(claim, wanted, px, rest, asked)
  local first, count = draw(wanted)
  local token = text(first)
  redis.call('SET', name,
    'fl1:' .. claim .. ':' .. token .. ':' .. count .. ':' .. token .. ':' .. px .. ':0:' .. asked .. ':' .. rest,
    'PX', px)
  return first, count
end

-- After a change among the readers: all their keys expire with the last of them.
local function set_expiry(kind)
  local last = redis.call('ZRANGE', readers, -1, -1, 'WITHSCORES')[2]
  if not last then
    redis.call('DEL', name, readers, reader_data)
    return false
  end
  redis.call('SET', name, 'fl1:*:' .. kind)
  redis.call('PEXPIREAT', name, last)
  redis.call('PEXPIREAT', readers, last)
  redis.call('PEXPIREAT', reader_data, last)
  return true
end

-- Grants the lock to a claim beside others of its kind. `fresh`: no reader holds yet.
local function grant_shared(claim, kind, px, rest, fresh, asked)
  if fresh then
    redis.call('DEL', readers, reader_data)
  end
  local token = draw(1)
  redis.call('ZADD', readers, text(now() + px), claim)
  redis.call('HSET', reader_data, claim, text(token) .. ':' .. px .. ':' .. text(now()) .. ':' .. asked .. ':' .. rest)
  set_expiry(kind)
  return token, 1
end

-- What holds the lock: nothing, or the value and, if readers hold, their kind. Expired readers are removed first; a value
-- for readers without readers counts as free.
local function current()
  local value = redis.call('GET', name)
  if not value or string.sub(value, 1, 6) ~= 'fl1:*:' then
    return value
  end
  local kind = string.sub(value, 7)
  local over = redis.call('ZRANGEBYSCORE', readers, '-inf', text(now()), 'LIMIT', 0, 1000)
  if #over > 0 then
    redis.call('ZREM', readers, unpack(over))
    redis.call('HDEL', reader_data, unpack(over))
  end
  if redis.call('EXISTS', readers) == 0 then
    redis.call('DEL', name, reader_data)
    return false
  end
  return value, kind
end

-- Whether a claim of this kind may hold beside the readers.
local function admits(kind, present)
  if kind ~= present then
    return false
  end
  return kind == 's' or redis.call('ZCARD', readers) < tonumber(string.sub(kind, 2))
end

local function is_newer(value)
  local version = string.match(value, '^fl(%d+):')
  return version and version ~= '1'
end

-- Tells a process that its claim was granted the lock. Returns how many processes heard it; 1 if that cannot be known.
local function tell(claim, token, tokens, rest)
  local channel = 'fencelock:' .. string.match(rest, '^%d+:([^:]*):') .. channel_tag
  local told = redis.pcall(channel_tag == '' and 'PUBLISH' or 'SPUBLISH', channel,
    'g' .. claim .. ':' .. text(token) .. ':' .. tokens .. ':' .. name)
  return type(told) == 'number' and told or 1
end

-- Serves the queue while its first claim is admitted, at most 64 claims. It removes a claim before it tells its process. A
-- claim whose process does not listen is skipped; one that hears and does not take the lock loses it after its window. A
-- first claim that must wait for the readers is dropped if it was not placed again for two windows (it should be twice per
-- window): else it would hold up other readers for as long as there are any. If it is alive, it comes back with its
-- ticket. `own`, the calling claim, gets `own_px` and is not told. Returns what holds the lock then, and the tokens of
-- `own` if it was served.
local function serve(value, present, own, own_px)
  if no_grants then
    return value, present
  end
  local first, count
  for _ = 1, 64 do
    if value and not present then
      break
    end
    local claim
    if value then
      claim = redis.call('ZRANGE', queue, 0, 0)[1]
    else
      claim = redis.call('ZPOPMIN', queue)[1]
    end
    if not claim then
      break
    end
    local window, seen, wanted, kind, rest =
      string.match(redis.call('HGET', queue_data, claim) or '', '^(%d+):(%d+):(%d+):(%w+):(.*)$')
    if value then
      if kind and not admits(kind, present) then
        -- Also if it was seen in the future: the clock was set back.
        if math.abs(now() - seen) <= 2 * window then
          break
        end
        kind = nil
      end
      redis.call('ZREM', queue, claim)
    end
    redis.call('HDEL', queue_data, claim)
    if kind then
      local px, asked = window, 2
      if claim == own then
        px, asked = own_px, 0
      end
      local token, tokens
      if kind == 'x' then
        token, tokens = grant_exclusive(claim, tonumber(wanted), px, rest, asked)
      else
        token, tokens = grant_shared(claim, kind, px, rest, not value, asked)
      end
      local heard = 1
      if claim == own then
        first, count = token, tokens
      else
        heard = tell(claim, token, tokens, rest)
      end
      if heard > 0 then
        value, present = true, kind ~= 'x' and kind
      elseif kind == 'x' then
        redis.call('DEL', name)
      else
        redis.call('ZREM', readers, claim)
        redis.call('HDEL', reader_data, claim)
        if set_expiry(kind) then
          value, present = true, kind
        else
          value, present = false, nil
        end
      end
    end
  end
  return value, present, first, count
end
