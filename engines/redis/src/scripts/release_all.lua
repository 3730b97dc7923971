-- release_all: `release` for many claims.
-- KEYS for each: lock  queue
-- ARGV for each: 'fl1:' and the claim
-- Returns for each 1 released, 0 in another case.
-- What goes wrong with one claim is another case: `withdraw` tells, and the others are released.
local answers = {}
for i, mark in ipairs(ARGV) do
  local lock = KEYS[2 * i - 1]
  local released = 0
  if redis.pcall('GETRANGE', lock, '0', '35') == mark and redis.call('EXISTS', KEYS[2 * i]) == 0 then
    released = redis.pcall('DEL', lock) == 1 and 1 or 0
  end
  answers[i] = released
end
return answers
