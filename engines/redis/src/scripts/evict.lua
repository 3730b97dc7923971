-- evict: take the lock from the claim that holds this token, or ask that claim to release.
-- KEYS 1 lock  2 queue  3 queue:who  4 queue:readers  5 queue:readers:who  6 counter
-- ARGV 1 token  2 'ask' or 'release'  3 floor  4 no_grants (1 or 0)
-- Returns 1 done, 0 this token does not hold, -1 the stored value is of a newer version.
local floor, no_grants = tonumber(ARGV[3]), ARGV[4] == '1'
local wanted, asks = tonumber(ARGV[1]), ARGV[2] == 'ask'
-- include lib.lua

-- PUBLISH reaches all nodes of a cluster: the holder may listen at another node than that of this slot.
local function notify(what, claim, rest)
  redis.pcall('PUBLISH', 'fencelock:' .. string.match(rest, '^%d+:([^:]*):'), what .. claim)
end

local value, present = current()
local answer = 0
if present then
  local all = redis.call('HGETALL', reader_data)
  for i = 1, #all, 2 do
    local token, px, since, rest = string.match(all[i + 1], '^(%d+):(%d+):(%d+):%d:(.*)$')
    if token and tonumber(token) == wanted then
      answer = 1
      if asks then
        redis.call('HSET', reader_data, all[i], token .. ':' .. px .. ':' .. since .. ':1:' .. rest)
        notify('a', all[i], rest)
      else
        redis.call('ZREM', readers, all[i])
        redis.call('HDEL', reader_data, all[i])
        if not set_expiry(present) then
          value, present = false, nil
        end
        notify('l', all[i], rest)
      end
      break
    end
  end
elseif value then
  if is_newer(value) then
    return -1
  end
  local claim, first, count, token, px, since, rest =
    string.match(value, '^fl1:(%x+):(%d+):(%d+):(%d+):(%d+):(%d+):%d:(.*)$')
  if claim and first ~= '0' and wanted >= tonumber(first) and wanted < tonumber(first) + tonumber(count) then
    answer = 1
    if asks then
      redis.call('SET', name,
        'fl1:' .. claim .. ':' .. first .. ':' .. count .. ':' .. token .. ':' .. px .. ':' .. since .. ':1:' .. rest,
        'KEEPTTL')
      notify('a', claim, rest)
    else
      redis.call('DEL', name)
      value = false
      notify('l', claim, rest)
    end
  end
end
serve(value, present)
return answer
