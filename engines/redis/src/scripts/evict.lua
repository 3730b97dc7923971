-- evict: take the lock from the claim that holds this token, or ask that claim to let go.
-- KEYS 1 lock  2 line  3 line:who  4 line:readers  5 line:readers:who  6 counter
-- ARGV 1 token  2 'ask' or 'release'  3 floor  4 shut (1 or 0)
-- Answers 1 done, 0 this token does not hold, -1 what is stored is of a newer version.
local floor, shut = tonumber(ARGV[3]), ARGV[4] == '1'
local wanted, asks = tonumber(ARGV[1]), ARGV[2] == 'ask'
-- include lib.lua

-- To all nodes of a cluster: the holder listens somewhere, if not at this slot's.
local function let_know(what, claim, rest)
  redis.pcall('PUBLISH', 'fencelock:' .. string.match(rest, '^%d+:([^:]*):'), what .. claim)
end

local value, present = holder()
local answer = 0
if present then
  local all = redis.call('HGETALL', reading)
  for i = 1, #all, 2 do
    local token, px, since, rest = string.match(all[i + 1], '^(%d+):(%d+):(%d+):%d:(.*)$')
    if token and tonumber(token) == wanted then
      answer = 1
      if asks then
        redis.call('HSET', reading, all[i], token .. ':' .. px .. ':' .. since .. ':1:' .. rest)
        let_know('a', all[i], rest)
      else
        redis.call('ZREM', readers, all[i])
        redis.call('HDEL', reading, all[i])
        if not settle(present) then
          value, present = false, nil
        end
        let_know('l', all[i], rest)
      end
      break
    end
  end
elseif value then
  if known_newer(value) then
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
      let_know('a', claim, rest)
    else
      redis.call('DEL', name)
      value = false
      let_know('l', claim, rest)
    end
  end
end
advance(value, present)
return answer
