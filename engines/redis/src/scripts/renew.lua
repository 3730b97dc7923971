-- renew: prolong many exclusive holds, and write their tokens.
-- KEYS n locks
-- ARGV 4 for each: 'fl1:' and the claim  token  px  rest, or empty to keep what is stored
-- Answers for each: 0 lost, 1 kept, 2 kept and asked to let go, 3 not done (out of memory).
local time
local answers = {}
for i, name in ipairs(KEYS) do
  local at = 4 * i - 3
  local token, px, rest = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local value = redis.pcall('GET', name)
  if type(value) ~= 'string' or string.sub(value, 1, 36) ~= ARGV[at] then
    answers[i] = 0
  else
    local first, count, stored, before, since, asked, kept =
      string.match(value, '^:(%d+):(%d+):(%d+):(%d+):(%d+):(%d):(.*)$', 37)
    local done
    if stored == token and since ~= '0' then
      done = redis.call('PEXPIRE', name, px)
    else
      if since == '0' then
        if not time then
          local parts = redis.call('TIME')
          time = parts[1] * 1000 + math.floor(parts[2] / 1000)
        end
        since = string.format('%.0f', time - (before - redis.call('PTTL', name)))
      end
      if first == '0' then
        first = token
      end
      asked = asked == '2' and '0' or asked
      done = redis.pcall('SET', name,
        ARGV[at] .. ':' .. first .. ':' .. count .. ':' .. token .. ':' .. px .. ':' .. since .. ':' .. asked .. ':'
          .. (rest == '' and kept or rest), 'PX', px)
    end
    if type(done) == 'table' and done.err then
      answers[i] = 3
    else
      answers[i] = asked == '1' and 2 or 1
    end
  end
end
return answers
