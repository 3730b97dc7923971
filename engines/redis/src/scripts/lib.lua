-- lib: what the scripts share. Expects two locals. `floor`: the highest token that the client has seen from this store (in
-- a cluster: from this slot). `shut`: whether the client knows that the server may not grant now (it was started or
-- promoted a moment ago); then the line stands still, and its waiters ask again.
-- KEYS 1 lock  2 line  3 line:who  4 line:readers  5 line:readers:who  6 counter
--
-- The lock itself, at `name`:
--   fl1:<claim>:<first>:<count>:<token>:<px>:<since>:<asked>:<rest>   held by one claim; first 0: token not recorded
--   fl1:*:<kind>                                                      held by readers of that kind
--   anything else                                                     held by another kind of client
-- rest = <delay>:<channel>:<owner>\31<label>; kind = x (exclusive), s (shared), p<of> (permits).
-- asked = 0, 1 (asked to let go), 2 (handed over by another's script, and no sign of life from it yet).
-- Beside it, only while used:
--   line               zset claim -> ticket
--   line:who           hash claim -> <window>:<seen>:<reserve>:<kind>:<rest>     seen: server time in ms of its last place
--   line:readers       zset claim -> expiry
--   line:readers:who   hash claim -> <token>:<px>:<since>:<asked>:<rest>
local name, line, waiting, readers, reading, counter = unpack(KEYS)

-- In a cluster each slot has a counter of its own, and its tag stands in the names of the channels for grants, too:
-- those then live at this slot's node.
local place_of_channels = string.sub(counter, 18)

-- The server's time, asked once: in microseconds, and in milliseconds.
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

-- A number as text; Lua's own way rounds.
local function text(number)
  return string.format('%.0f', number)
end

-- Draws tokens, as many as wished while the counter stays below the server's time in microseconds, else one. A counter
-- below what the client has seen was lost and is lifted above every token that can have been drawn before. Where a
-- replica may take over (`timed`), every token is the server's time at least: what the replica had not got yet is then
-- below.
local function draw(wish)
  if timed then
    local last = math.max(tonumber(redis.call('GET', counter)) or 0, floor)
    if last > micros() - wish then
      wish = 1
    end
    last = math.max(last, micros() - wish) + wish
    redis.call('SET', counter, text(last))
    return last - wish + 1, wish
  end
  if wish > 1 and (tonumber(redis.call('GET', counter)) or 0) + wish > micros() then
    wish = 1
  end
  local last = redis.call('INCRBY', counter, wish)
  if last - wish < floor then
    last = math.max(floor, micros()) + wish
    redis.call('SET', counter, text(last))
  end
  return last - wish + 1, wish
end

-- Gives the free lock to a claim, alone.
local function hold(claim, wish, px, rest, asked)
  local first, count = draw(wish)
  local token = text(first)
  redis.call('SET', name,
    'fl1:' .. claim .. ':' .. token .. ':' .. count .. ':' .. token .. ':' .. px .. ':0:' .. asked .. ':' .. rest,
    'PX', px)
  return first, count
end

-- After a change among the readers: all their keys end with the last of them, be that earlier or later than before.
local function settle(kind)
  local last = redis.call('ZRANGE', readers, -1, -1, 'WITHSCORES')[2]
  if not last then
    redis.call('DEL', name, readers, reading)
    return false
  end
  redis.call('SET', name, 'fl1:*:' .. kind)
  redis.call('PEXPIREAT', name, last)
  redis.call('PEXPIREAT', readers, last)
  redis.call('PEXPIREAT', reading, last)
  return true
end

-- Gives the lock to a claim beside others of its kind. `fresh`: no reader holds yet.
local function share(claim, kind, px, rest, fresh, asked)
  if fresh then
    redis.call('DEL', readers, reading)
  end
  local token = draw(1)
  redis.call('ZADD', readers, text(now() + px), claim)
  redis.call('HSET', reading, claim, text(token) .. ':' .. px .. ':' .. text(now()) .. ':' .. asked .. ':' .. rest)
  settle(kind)
  return token, 1
end

-- What holds the lock: nothing, or the value and, if readers hold, their kind. Readers that are over are purged first;
-- a mark without readers counts as free.
local function holder()
  local value = redis.call('GET', name)
  if not value or string.sub(value, 1, 6) ~= 'fl1:*:' then
    return value
  end
  local kind = string.sub(value, 7)
  local over = redis.call('ZRANGEBYSCORE', readers, '-inf', text(now()), 'LIMIT', 0, 1000)
  if #over > 0 then
    redis.call('ZREM', readers, unpack(over))
    redis.call('HDEL', reading, unpack(over))
  end
  if redis.call('EXISTS', readers) == 0 then
    redis.call('DEL', name, reading)
    return false
  end
  return value, kind
end

-- Whether a claim of this kind may stand beside the readers.
local function room(kind, present)
  if kind ~= present then
    return false
  end
  return kind == 's' or redis.call('ZCARD', readers) < tonumber(string.sub(kind, 2))
end

local function known_newer(value)
  local version = string.match(value, '^fl(%d+):')
  return version and version ~= '1'
end

-- Tells a process that a claim of it was granted the lock. Returns how many listen; 1 if that cannot be known.
local function tell(claim, token, tokens, rest)
  local channel = 'fencelock:' .. string.match(rest, '^%d+:([^:]*):') .. place_of_channels
  local told = redis.pcall(place_of_channels == '' and 'PUBLISH' or 'SPUBLISH', channel,
    'g' .. claim .. ':' .. text(token) .. ':' .. tokens .. ':' .. name)
  return type(told) == 'number' and told or 1
end

-- Serves the line while its head is admissible, 64 claims at most. Pops first and tells then. A claim whose process does
-- not listen is skipped; one that hears may still not take it, which its window bounds. A head that has to wait for the
-- readers to go is dropped if it has not asked for two windows (it should every half): it must not hold up other readers
-- for as long as there are any. If it lives, it comes back with its ticket. `own`, the calling claim, gets `own_px` and
-- needs no telling. Returns what holds the lock then, and the tokens of `own` if it was served.
local function advance(value, present, own, own_px)
  if shut then
    return value, present
  end
  local first, count
  for _ = 1, 64 do
    if value and not present then
      break
    end
    local claim
    if value then
      claim = redis.call('ZRANGE', line, 0, 0)[1]
    else
      claim = redis.call('ZPOPMIN', line)[1]
    end
    if not claim then
      break
    end
    local window, seen, wish, kind, rest =
      string.match(redis.call('HGET', waiting, claim) or '', '^(%d+):(%d+):(%d+):(%w+):(.*)$')
    if value then
      if kind and not room(kind, present) then
        -- Also one seen in the future: the clock was set back.
        if math.abs(now() - seen) <= 2 * window then
          break
        end
        kind = nil
      end
      redis.call('ZREM', line, claim)
    end
    redis.call('HDEL', waiting, claim)
    if kind then
      local px, asked = window, 2
      if claim == own then
        px, asked = own_px, 0
      end
      local token, tokens
      if kind == 'x' then
        token, tokens = hold(claim, tonumber(wish), px, rest, asked)
      else
        token, tokens = share(claim, kind, px, rest, not value, asked)
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
        redis.call('HDEL', reading, claim)
        if settle(kind) then
          value, present = true, kind
        else
          value, present = false, nil
        end
      end
    end
  end
  return value, present, first, count
end
