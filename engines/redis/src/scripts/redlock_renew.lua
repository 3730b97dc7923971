-- redlock_renew: prolong many holds, and write their tokens. Never creates a key, and never changes a token that a renewal
-- has written.
-- KEYS n locks
-- ARGV 3 for each: 'fl1:' claim ':'  token  px, or '=' and px if the lease may get shorter
-- Returns for each: 0 lost, or held with another token, 1 kept, 2 kept and asked to release, 3 not done (out of memory).
local now
local answers = {}
for i, name in ipairs(KEYS) do
  local mark, token, px = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  local value = redis.pcall('GET', name)
  if type(value) ~= 'string' or string.sub(value, 1, #mark) ~= mark then
    answers[i] = 0
  else
    local attempt, stored, before, since, asked, rest =
      string.match(value, '^(%d+):1:(%d+):(%d+):(%d+):(%d):(.*)$', #mark + 1)
    local left = redis.call('PTTL', name)
    local exact = string.match(px, '^=(%d+)$')
    px = tonumber(exact or px)
    if not exact then
      px = math.max(px, left)
    end
    local done
    if stored ~= token and since ~= '0' then
      done = false
    elseif since ~= '0' then
      done = redis.call('PEXPIRE', name, px)
    else
      if since == '0' then
        if not now then
          local parts = redis.call('TIME')
          now = parts[1] * 1000 + math.floor(parts[2] / 1000)
        end
        since = string.format('%.0f', now - (before - left))
      end
      done = redis.pcall('SET', name,
        mark .. attempt .. ':1:' .. token .. ':' .. px .. ':' .. since .. ':' .. asked .. ':' .. rest, 'PX', px)
    end
    if not done then
      answers[i] = 0
    elseif type(done) == 'table' and done.err then
      answers[i] = 3
    else
      answers[i] = asked == '1' and 2 or 1
    end
  end
end
return answers
