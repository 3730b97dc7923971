-- renew: prolong many exclusive holds, and write their tokens.
-- KEYS n locks
-- ARGV 4 for each: 'fl1:' and the claim  token  px, or '=' and px if the lease may get shorter
--      rest, or empty to keep what is stored
-- Returns for each: 0 lost, 1 kept, 2 kept and asked to release, 3 not done (out of memory).
local time
local function now()
  if not time then
    local parts = redis.call('TIME')
    time = parts[1] * 1000 + math.floor(parts[2] / 1000)
  end
  return time
end

local function renew(name, mark, token, px, rest)
  local value = redis.pcall('GET', name)
  if type(value) ~= 'string' or string.sub(value, 1, 36) ~= mark then
    return 0
  end
  local first, count, stored, before, since, asked, kept =
    string.match(value, '^:(%d+):(%d+):(%d+):(%d+):(%d+):(%d):(.*)$', 37)
  local number, lowest = tonumber(token), tonumber(first)
  if lowest > 0 and (number < lowest or number >= lowest + count) then
    -- The token of an earlier grant.
    return 0
  end
  -- This call may be late: it takes nothing from a longer lease. It writes that again, so that replicas have it.
  local left = redis.call('PTTL', name)
  local exact = string.match(px, '^=(%d+)$')
  px = tonumber(exact or px)
  if not exact and left > px then
    px = left
  end
  local answer = asked == '1' and 2 or 1
  if lowest > 0 and number < tonumber(stored) or stored == token and since ~= '0' then
    -- The token is written already, or a later one is: then this call is late.
    redis.call('PEXPIRE', name, px)
    return answer
  end
  if since == '0' then
    since = string.format('%.0f', now() - (before - left))
  end
  if first == '0' then
    first = token
  end
  asked = asked == '2' and '0' or asked
  local done = redis.pcall('SET', name,
    mark .. ':' .. first .. ':' .. count .. ':' .. token .. ':' .. px .. ':' .. since .. ':' .. asked .. ':'
      .. (rest == '' and kept or rest), 'PX', px)
  if type(done) == 'table' and done.err then
    return 3
  end
  return answer
end

local answers = {}
for i, name in ipairs(KEYS) do
  local at = 4 * i - 3
  answers[i] = renew(name, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
end
return answers
