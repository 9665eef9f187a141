/* task_words_table.h: the built-in word lists, X(name, "phrase|phrase|..."), English and Chinese.
 * The order is the order of the weights in a task model: new lists go to the end.
 */
#ifndef LAC_MODELS_TASK_WORDS_TABLE_H
#define LAC_MODELS_TASK_WORDS_TABLE_H

/* clang-format off */
#define TASK_WORDS_LIST(X)                                                                         \
    X("steps",                                                                                     \
      "step|steps|step by step|first|then|next|finally|therefore|thus|hence|because|process|"      \
      "procedure|reasoning|show your work|work out|walk me through|stage|stages|afterwards|"       \
      "步骤|一步一步|逐步|首先|其次|然后|接着|最后|因此|所以|于是|过程|推理|分步|依次|流程")       \
    X("calculate",                                                                                 \
      "calculate|compute|solve|evaluate|simplify|sum|product of|multiply|multiplied|divide|"       \
      "divided by|plus|minus|times|equals|equal to|equation|equations|subtract|how many|how much|" \
      "how far|how long will|percent|percentage|ratio|average|remainder|total|altogether|"         \
      "in total|left over|each|twice|half|double|triple|per hour|per day|per week|fraction|"       \
      "square root|derivative|integral|factor|digits|integer|"                                     \
      "计算|求解|求|解方程|方程|等于多少|等于|加上|减去|乘以|除以|乘|除|之和|之差|之积|余数|总共|" \
      "一共|共有|平均|平均数|百分之|百分比|倍|平方|立方|次方|开方|根号|分之|多少个|还剩|剩下|"     \
      "每个|每人|每天|每小时|速度|整数|自然数|小数|分数|的值|化简|因数|公倍数|约数")               \
    X("mathematics",                                                                               \
      "triangle|circle|rectangle|radius|diameter|perimeter|area of|volume|angle|probability|"      \
      "prime|polynomial|function f|quadratic|matrix|vector|sequence|permutations|combinations|"    \
      "theorem|prove|proof|geometry|algebra|arithmetic|coordinates|parallel|perpendicular|"        \
      "三角形|正方形|长方形|圆|半径|直径|周长|面积|体积|角度|概率|质数|素数|函数|数列|等差|等比|"  \
      "证明|定理|几何|代数|坐标|平行|垂直|矩阵|向量|积分|导数|微积分|不等式|数学|奇数|偶数|满足|"  \
      "最大值|最小值|抛物线|集合|排列|组合|边长|直线|线段")                                        \
    X("logic",                                                                                     \
      "if all|either|implies|conclude|conclusion|premise|premises|deduce|infer|logically|"         \
      "syllogism|puzzle|riddle|logic|truth|lies|suppose|assume|assuming|given that|let|"           \
      "which of the following|why does|explain why|reason|cause|causes|consequence|consequences|"  \
      "如果|假设|假如|已知|设|若|前提|推断|推出|结论|推理题|逻辑|谜题|真话|假话|谎话|判断|则|"     \
      "规律|下一个数|为什么|原因|分析|因果|比较|区别|说明理由|对错")                               \
    X("code",                                                                                      \
      "code|program|programs|programming|function|script|algorithm|implement|implementation|"      \
      "compile|compiler|debug|bug|api|class|method|array|string|list|lists|tuple|tuples|dict|"     \
      "dictionary|loop|recursion|recursive|regex|regular expression|database|query|schema|"        \
      "snippet|syntax|variable|library|framework|frontend|backend|app|command line|unit test|"     \
      "exception|parse|json|xml|csv|http|rest|server|client|docker|kubernetes|git|linux|bash|"     \
      "shell|excel formula|macro|sort|binary search|linked list|stack|queue|hash|thread|"          \
      "refactor|component|dataframe|element|elements|input|output|return|returns|"                 \
      "代码|程序|编程|编写|函数|脚本|算法|实现|编译|调试|接口|类|方法|数组|字符串|列表|元组|字典|" \
      "循环|递归|正则表达式|数据库|查询语句|爬虫|变量|库|框架|前端|后端|开发|命令行|单元测试|"     \
      "异常|解析|服务器|客户端|排序|二分查找|链表|栈|队列|哈希|线程|多线程|重构|组件|返回|"        \
      "输入|输出|软件|应用程序|网页|网站|语法|数据结构|文件|读取|元素")                            \
    X("languages",                                                                                 \
      "python|java|javascript|typescript|c|cpp|csharp|ruby|php|perl|scala|kotlin|swift|go|golang|" \
      "rust|sql|mysql|postgres|postgresql|mongodb|redis|html|css|react|reactjs|vue|angular|node|"  \
      "nodejs|django|flask|spring|numpy|pandas|pytorch|tensorflow|matlab|r|haskell|lua|bash|"      \
      "powershell|excel|vba|jquery|opencv|sklearn|matplotlib|android|ios|unity|assembly|julia|"    \
      "c 语言|爪哇|def|import|print|void|int|const|var|public|static|self|null|none|true|false")   \
    X("facts",                                                                                     \
      "who|whose|when|where|which|what year|in which year|what date|what time|how old|how tall|"   \
      "how big|what is the name|what was|who was|who is|who wrote|who painted|capital of|"         \
      "located|population|founded|invented|discovered|born|died|definition|define|meaning of|"     \
      "synonym|antonym|convert|what kind of|what type of|what did|what does|how many people|"      \
      "according to|passage|text|context|"                                                         \
      "谁|哪里|哪儿|哪个|哪些|哪一|哪年|哪一年|哪国|什么时候|何时|何地|何人|几点|几号|多大|多高|"  \
      "多长|多远|名字|叫什么|叫什|首都|位于|人口|成立|创立|发明|发现|出生|去世|作者|国家|定义|"    \
      "是什么意思|多少钱|是多少|几个|第几|属于|历史上|根据|文中|的时候|为何|什么")                 \
    X("lookup",                                                                                    \
      "address|phone number|telephone|opening hours|open until|price|cost|fee|fees|rating|"        \
      "nearby|near|distance|weather|temperature|forecast|schedule|calendar|status|balance|"        \
      "account|card|pin|payment|payments|transaction|transfer|exchange rate|currency|refund|"      \
      "charge|charged|top up|order|delivery|tracking|reservation|flight|visa|bill|credit score|"   \
      "interest rate|insurance|gas|mileage|calories|nutrition|vaccines|traffic|timezone|"          \
      "地址|电话|营业时间|几点开门|价格|费用|门票|票价|评分|附近|周边|距离|天气|气温|预报|日程|"   \
      "日历|状态|余额|账户|银行卡|密码|支付|交易|转账|汇率|货币|退款|订单|快递|物流|预订|预定|"    \
      "航班|签证|账单|信用|利率|保险|热量|查询|查一下|告诉我|免费|地铁|时间|最近|目前|开放")       \
    X("products",                                                                                  \
      "bank|hotel|hotels|restaurant|restaurants|attraction|museum|park|station|airport|ticket|"    \
      "tickets|room|rooms|car|rental|phone|laptop|computer|camera|shoes|dress|coffee|pizza|"       \
      "loan|mortgage|deposit|savings|atm|cash|app store|subscription|coupon|discount|reward|"      \
      "rewards|promotion|gift card|checkout|store|shop|shopping|product|products|"                 \
      "银行|酒店|宾馆|餐馆|餐厅|饭店|景点|博物馆|公园|车站|机场|门票|房间|汽车|租车|手机|电脑|"    \
      "相机|鞋|裙子|咖啡|贷款|房贷|存款|储蓄|现金|会员|优惠券|优惠|折扣|积分|促销|礼品卡|商店|"    \
      "购物|商品|产品|出租车|设施|人均|消费|菜|菜品")                                              \
    X("create",                                                                                    \
      "write|write a|write about|story|stories|poem|haiku|sonnet|song|lyrics|essay|article|blog|"  \
      "novel|tale|script for|speech|letter|email|joke|jokes|slogan|tagline|headline|title|titles|" \
      "caption|review|plot|character|characters|dialogue|scene|imagine|imaginary|pretend|"         \
      "compose|craft|draft|pen|create|creative|invent|make up|come up with|brainstorm|"            \
      "metaphor|rhyme|fictional|narrative|advertisement|describe|paragraph|outline|"               \
      "写|写一|写一篇|写一首|写一个|故事|诗|诗歌|歌词|作文|文章|博客|小说|剧本|演讲|演讲稿|信|"    \
      "邮件|笑话|口号|标语|广告|标题|评论|影评|书评|情节|角色|对话|场景|想象|假装|创作|撰写|"      \
      "起草|创造|创意|编一个|头脑风暴|比喻|押韵|虚构|描述|描写|散文|段落|大纲|祝福|文案")          \
    X("advise",                                                                                    \
      "advice|suggest|suggestion|suggestions|recommend|recommendation|recommendations|ideas|idea|" \
      "tips|tip|should i|best way|ways to|how can i|how do i improve|how to improve|plan|plan a|"  \
      "strategy|strategies|itinerary|guide|help me|improve|opinion|opinions|your thoughts|"        \
      "think about|feel|favorite|favourite|pros and cons|benefits|advantages|importance|discuss|"  \
      "what are some|tell me about|how would you|what would you|why do you|"                       \
      "建议|推荐|主意|想法|技巧|窍门|应该|最好|方法|怎样才能|如何提高|如何保持|如何|计划|规划|"    \
      "策略|攻略|指南|帮我|改善|提升|看法|观点|你认为|你觉得|感受|最喜欢|优缺点|好处|优点|意义|"   \
      "重要性|谈谈|讨论|介绍|有什么|哪些方法|影响|未来|趋势|怎么办|适合")                          \
    X("persona",                                                                                   \
      "act as|you are a|you are an|role|pretend to be|assume the identity|imagine you|as if you|"  \
      "persona|i want you to|my first request|your task|your job|respond as|character card|"       \
      "充当|扮演|担任|你是一个|你是一名|你是一位|我想让你|我要你|我希望你|角色扮演|"               \
      "我的第一个|你的任务|作为|请你作为|假如你是")                                                \
    X("transform",                                                                                 \
      "translate|translation|summarize|summarise|summary|rewrite|paraphrase|rephrase|shorten|"     \
      "expand|proofread|correct|fix|edit|grammar|extract|classify|categorize|identify|label|"      \
      "sentiment|list all|fill in|complete|convert|format|"                                        \
      "翻译|总结|概括|摘要|改写|润色|缩写|扩写|纠正|修改|校对|语法错误|提取|分类|识别|标注|"       \
      "情感|填空|补全|完成|转换|格式")                                                             \
    X("personal",                                                                                  \
      "i|my|me|mine|we|our|myself|i am|i have|i need|i want|i would|can i|do i|am i|"              \
      "我|我的|我们|我要|我想|我需要|我有|我是|自己|本人|咱们")                                    \
    X("addressee",                                                                                 \
      "you|your|yourself|can you|could you|would you|please|do you|are you|have you|"              \
      "你|您|你的|您的|请|请问|请你|请帮|能否|能不能|可以吗|可否|麻烦")                            \
    X("emotion",                                                                                   \
      "love|happy|sad|fear|afraid|angry|joy|lonely|dream|dreams|hope|memory|memories|childhood|"   \
      "life|friend|friends|family|mother|father|relationship|fun|funny|beautiful|favorite|weird|"  \
      "爱|爱情|快乐|幸福|悲伤|害怕|愤怒|孤独|梦想|希望|回忆|童年|人生|生活|朋友|家人|母亲|"        \
      "父亲|有趣|美丽|感人|温暖|浪漫|心情")                                                        \
    X("people-and-places",                                                                         \
      "president|king|queen|emperor|war|battle|country|city|century|university|church|company|"    \
      "film|movie|album|band|team|league|championship|river|mountain|island|state|government|"     \
      "empire|dynasty|species|scientist|author|singer|actor|director|treaty|"                      \
      "总统|国王|皇帝|战争|战役|城市|世纪|大学|公司|电影|专辑|乐队|球队|联赛|冠军|河|山|岛|"       \
      "政府|帝国|朝代|物种|科学家|歌手|演员|导演|条约|省|县|教会|世界杯|年代")                     \
    X("story-problem",                                                                             \
      "buys|bought|sells|sold|apples|oranges|candies|marbles|pencils|cookies|dollars|cents|"       \
      "minutes|hours|miles|pounds|gallons|feet|inches|more than|fewer|fewer than|less than|"       \
      "as many|as much|remaining|gave|gives|earns|spends|spent|costs|eats|ate|train|boat|speed|"   \
      "workers|days to|older|younger|years old|"                                                   \
      "买了|卖了|苹果|橘子|糖果|铅笔|元|角|分钟|小时|公里|千米|米|厘米|千克|克|升|比|多出|少|"     \
      "给了|吃了|花了|用了|走了|甲|乙|丙|小明|小红|小华|小李|岁|只鸟|工人|完成一|同学|相距|追上")
/* clang-format on */

#endif
